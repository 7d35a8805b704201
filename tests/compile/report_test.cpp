// What is read out of code objects and compilers' logs.
#include "gpu/compile/report/report.h"

#include <gtest/gtest.h>

#include "gpu/compile/report/amd_metadata.h"
#include "gpu/compile/report/message_pack.h"
#include "tiny_kernel.h"

namespace fulmen::test {
namespace {

gpu::Chip chip_of(const std::string& arch) {
  std::string storage;
  gpu::Chip chip{};
  EXPECT_TRUE(gpu::find_chip(arch, storage, chip));
  return chip;
}

TEST(AmdMetadata, SaysWhatTheKernelTakes) {
  for (const std::string& arch : kAmdArchs) {
    const gpu::CompiledCode compiled = compile_tiny(arch);
    const auto kernels = gpu::read_amd_metadata(compiled.code);
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    ASSERT_EQ(kernels.value().size(), 1U);
    const gpu::AmdKernelMetadata& k = kernels.value()[0];
    EXPECT_EQ(k.name, "fulmen_kernel");
    EXPECT_TRUE(k.target.ends_with("--" + arch)) << k.target;
    EXPECT_EQ(k.argument_bytes, 8);
    EXPECT_EQ(k.lds_bytes, 512);
    EXPECT_EQ(k.max_workgroup_size, 64);
    EXPECT_EQ(k.wave_size, arch.starts_with("gfx9") ? 64 : 32);
    EXPECT_GT(k.vector_registers, 0);
    EXPECT_LT(k.vector_registers, 32);
    EXPECT_EQ(k.vector_spills + k.scalar_spills + k.scratch_bytes, 0);
  }
}

TEST(AmdMetadata, AnotherWaveSizeThanTheSourcesIsRefused) {
  EXPECT_TRUE(gpu::check_wave_size(compile_tiny("gfx1100").code, 32).ok());
  EXPECT_TRUE(gpu::check_wave_size(compile_tiny("gfx942").code, 64).ok());
  const Status status = gpu::check_wave_size(compile_tiny("gfx942").code, 32);
  EXPECT_EQ(status.code(), StatusCode::internal);
  EXPECT_NE(status.message().find("64 lanes; its source is for 32"), std::string::npos)
      << status.message();
  EXPECT_TRUE(gpu::check_wave_size({}, 32).ok()) << "the runtime knows what is wrong with it";
}

TEST(AmdMetadata, AnyPartOfACodeObjectIsReadOrRefused) {
  const gpu::CompiledCode compiled = compile_tiny("gfx1100");
  for (std::size_t bytes = 0; bytes < compiled.code.size(); bytes += 7) {
    const auto kernels = gpu::read_amd_metadata(std::span(compiled.code).first(bytes));
    ASSERT_TRUE(kernels.ok() ? kernels.value().size() == 1 : !kernels.status().message().empty())
        << bytes;
  }
}

using Reader = gpu::MessagePackReader;
std::vector<std::byte> bytes_of(std::initializer_list<int> list) {
  std::vector<std::byte> bytes;
  for (const int b : list) bytes.push_back(static_cast<std::byte>(b));
  return bytes;
}

TEST(MessagePack, IntegersOfEverySize) {
  struct Case {
    std::vector<std::byte> bytes;
    int64_t value;
  };
  for (const Case& c :
       {Case{bytes_of({0x7F}), 127}, Case{bytes_of({0xFF}), -1}, Case{bytes_of({0xE0}), -32},
        Case{bytes_of({0xCC, 200}), 200}, Case{bytes_of({0xCD, 1, 2}), 258},
        Case{bytes_of({0xCE, 0x80, 0, 0, 0}), 2147483648},
        Case{bytes_of({0xCF, 0, 0, 0, 1, 0, 0, 0, 0}), 4294967296},
        Case{bytes_of({0xD0, 0x80}), -128}, Case{bytes_of({0xD1, 0xFF, 0xFE}), -2},
        Case{bytes_of({0xD2, 0xFF, 0xFF, 0xFF, 0xFF}), -1},
        Case{bytes_of({0xD3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFD}), -3}}) {
    Reader reader(c.bytes);
    Reader::Token token;
    ASSERT_TRUE(reader.next(token));
    EXPECT_EQ(token.kind, Reader::Kind::integer);
    EXPECT_EQ(token.value, c.value);
    EXPECT_FALSE(reader.next(token));
  }
}

TEST(MessagePack, SkipsNestedValuesAndRefusesWhatIsCutOff) {
  // {"a": [1, nil, true, 2.5f], "b": "xy"}, 7
  const auto bytes = bytes_of({0x82, 0xA1, 'a', 0x94, 1, 0xC0, 0xC3, 0xCA, 0x40, 0x20, 0, 0, 0xA1,
                               'b', 0xD9, 2, 'x', 'y', 7});
  Reader reader(bytes);
  ASSERT_TRUE(reader.skip());
  Reader::Token token;
  ASSERT_TRUE(reader.next(token));
  EXPECT_EQ(token.value, 7);
  for (std::size_t length = 0; length + 1 < bytes.size(); ++length) {
    Reader part(std::span<const std::byte>(bytes).first(length));
    EXPECT_FALSE(part.skip()) << length;
  }
  const auto liar = bytes_of({0xDD, 0xFF, 0xFF, 0xFF, 0xFF, 1});
  Reader large(liar);
  EXPECT_FALSE(large.skip());
}

TEST(Report, OfATinyAmdKernel) {
  const gpu::CompileRequest request = tiny_request("gfx1100");
  const KernelReport r = gpu::report_on(chip_of("gfx1100"), request, compile_tiny("gfx1100"), 512);
  EXPECT_EQ(r.arch, "gfx1100");
  EXPECT_EQ(r.kernel, "tiny");
  EXPECT_EQ(r.workgroup_size, 64);
  EXPECT_EQ(r.spills, 0);
  EXPECT_EQ(r.scratch_bytes, 0);
  EXPECT_EQ(r.occupancy, 16);
  EXPECT_GT(r.registers, 0);
  EXPECT_GT(r.code_bytes, 500U);
  ASSERT_EQ(r.loop_missing, "");
  EXPECT_EQ(r.loop.matrix, 0);
  EXPECT_GE(r.loop.transcendental, 1);
}

TEST(Report, OfPtxasWords) {
  gpu::CompiledCode code;
  code.log =
      "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'fulmen_kernel' for "
      "'sm_80'\n"
      "ptxas info    : Function properties for fulmen_kernel\n    16 bytes stack frame, 12 bytes "
      "spill stores, 8 bytes spill "
      "loads\n"
      "ptxas info    : Used 128 registers, used 1 barriers, 360 bytes cmem[0]\n";
  gpu::CompileRequest request = tiny_request("sm_80");
  request.workgroup_size = 256;
  KernelReport r = gpu::report_on(chip_of("sm_80"), request, code, 1024);
  EXPECT_EQ(r.registers, 128);
  EXPECT_EQ(r.spills, 20);
  EXPECT_EQ(r.scratch_bytes, 16);
  EXPECT_EQ(r.occupancy, 16);  // 65536 / (128 x 32)
  EXPECT_FALSE(r.loop_missing.empty()) << "there is no code";
  r = gpu::report_on(chip_of("sm_80"), request, code, 100 * 1024);
  EXPECT_EQ(r.occupancy, 8);  // one workgroup's LDS
  code.log = "ptxas info    : Used 16 registers";
  r = gpu::report_on(chip_of("sm_89"), request, code, 0);
  EXPECT_EQ(r.occupancy, 48);
  EXPECT_EQ(r.spills, -1);
  EXPECT_EQ(r.serialised, "");
  code.log =
      "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient "
      "register "
      "resources for the wgmma pipeline in the function 'fulmen_kernel'\nptxas info    : Used 168 "
      "registers\n";
  r = gpu::report_on(chip_of("sm_90a"), request, code, 0);
  EXPECT_EQ(r.serialised, "insufficient register resources for the wgmma pipeline");
}

}  // namespace
}  // namespace fulmen::test
