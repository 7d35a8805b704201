// AMD kernels by an installed clang.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gpu/compile/compiler.h"
#include "gpu/compile/run_program.h"
#include "tiny_kernel.h"

namespace fulmen::test {
namespace {

TEST(OfflineClang, MakesACodeObjectAndTellsItsRegisters) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  for (const std::string& arch : kAmdArchs) {
    const auto compiled = compiler.value()->compile(tiny_request(arch));
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    ASSERT_GT(compiled.value().code.size(), 500U);
    EXPECT_EQ(compiled.value().code[1], std::byte{'E'});
    EXPECT_NE(compiled.value().log.find("VGPRs: "), std::string::npos) << compiled.value().log;
    EXPECT_EQ(compiled.value().log.find("warning:"), std::string::npos) << compiled.value().log;
  }
}

// ELFABIVERSION_AMDGPU_HSA_V4, which every HIP from 5.0 on loads, whatever the compiler's own is.
TEST(OfflineClang, EveryRuntimeLoadsItsCodeObjects) {
  for (const std::string& arch : kAmdArchs) {
    const gpu::CompiledCode code = compile_tiny(arch);
    ASSERT_GT(code.code.size(), 16U);
    EXPECT_EQ(code.code[8], std::byte{2}) << arch;
  }
}

// RDNA3 can lose a result between two instructions that are issued as one.
TEST(OfflineClang, Rdna3GetsNoDualInstructions) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  std::string disassembler;
  for (const char* name : {"llvm-objdump-19", "llvm-objdump"}) {
    if (disassembler.empty()) disassembler = gpu::find_program(name);
  }
  if (disassembler.empty()) GTEST_SKIP() << "llvm-objdump is not in PATH";
  const std::string source = R"(
extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void fulmen_kernel(float* p, int n) {
  const unsigned id = __builtin_amdgcn_workitem_id_x();
  float a = p[id], b = p[id + 64], c = p[id + 128], d = p[id + 192];
  for (int i = 0; i < n; ++i) {
    const float e = a * b + 1.0f, f = c * d + 1.0f;
    a = e * c;
    b = f * d;
    c = e + b;
    d = f + a;
  }
  p[id] = a + b + c + d;
}
)";
  const auto disassembly = [&](const std::string& arch) {
    const auto compiled = compiler.value()->compile({"pairs", source, arch, 64});
    EXPECT_TRUE(compiled.ok()) << compiled.status().message();
    if (!compiled.ok()) return std::string();
    const gpu::TemporaryDirectory folder;
    const std::string file = folder.path() + "/kernel";
    const std::string code(reinterpret_cast<const char*>(compiled->code.data()), compiled->code.size());
    EXPECT_TRUE(gpu::write_file(file, code).ok());
    const auto text = gpu::run_program({disassembler, "-d", file});
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? text.value() : std::string();
  };
  EXPECT_NE(disassembly("gfx1201").find("v_dual_"), std::string::npos) << "RDNA4 has no such defect, and would use them here";
  for (const char* arch : {"gfx1100", "gfx1103", "gfx1150", "gfx1151"}) {
    const std::string text = disassembly(arch);
    EXPECT_NE(text.find("v_fma"), std::string::npos) << text;
    EXPECT_EQ(text.find("v_dual_"), std::string::npos) << arch << "\n" << text;
  }
}

TEST(OfflineClang, SameSourceGivesSameCode) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const auto a = compiler.value()->compile(tiny_request("gfx1100"));
  const auto b = compiler.value()->compile(tiny_request("gfx1100"));
  EXPECT_EQ(a.value().code, b.value().code);
  EXPECT_EQ(a.value().log, b.value().log);
}

TEST(OfflineClang, ErrorsNameKernelChipAndLine) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const auto bad = compiler.value()->compile({"broken one", "#line 7 \"forward.h\"\nint x = nothing;\n", "gfx1100", 64});
  ASSERT_FALSE(bad.ok());
  for (const char* part : {"broken one", "gfx1100", "forward.h:7", "nothing"}) {
    EXPECT_NE(bad.status().message().find(part), std::string::npos) << bad.status().message();
  }
  EXPECT_FALSE(compiler.value()->compile(tiny_request("gfx9999")).ok());
}

TEST(OfflineClang, AFolderForTemporaryFilesThatIsNotThereIsNamed) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/absent", 1);
  const auto compiled = compiler.value()->compile(tiny_request("gfx1100"));
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  ASSERT_FALSE(compiled.ok());
  EXPECT_NE(compiled.status().message().find("/absent (TMPDIR, else /tmp): No such file"), std::string::npos)
      << compiled.status().message();
}

}  // namespace
}  // namespace fulmen::test
