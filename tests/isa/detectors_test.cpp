// Each rule of the instruction set's emulator, broken by a tiny kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/drivers/isa/driver.h"

namespace fulmen::testing {
namespace {

constexpr int kLanes = 32;

// Memory of the emulated device, and what a kernel of `body` in HIP, over `float* x` and `int lane`, did with it.
struct Outcome {
  std::vector<uint32_t> words;
  std::string error;
};

Outcome run(const std::string& body, const std::string& arch = "gfx1100", int workgroup_size = kLanes) {
  const gpu::Driver& driver = gpu::isa_driver();
  const std::vector<std::string> names = driver.selectors();
  const int device = static_cast<int>(std::find(names.begin(), names.end(), arch) - names.begin());
  const std::string source = "typedef unsigned u; extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(" +
                             std::to_string(workgroup_size) + ", " + std::to_string(workgroup_size) +
                             "))) void fulmen_kernel(u* x) { const u lane = __builtin_amdgcn_workitem_id_x();\n" + body + "}\n";
  const auto code = gpu::offline_clang_compiler().value()->compile({"tiny", source, arch, workgroup_size});
  if (!code.ok()) return {{}, code.status().message()};
  const auto module = driver.load(device, code->code);
  if (!module.ok()) return {{}, module.status().message()};
  const auto function = driver.function(device, module.value(), "fulmen_kernel", 0);
  const std::size_t bytes = sizeof(uint32_t) * static_cast<std::size_t>(workgroup_size);
  void* memory = driver.allocate(device, bytes).value();
  for (int n = 0; n < workgroup_size; ++n) static_cast<uint32_t*>(memory)[n] = 100U + static_cast<uint32_t>(n);
  const gpu::Launch launch{
      .workgroups = 1, .workgroup_size = workgroup_size, .arguments = &memory, .argument_bytes = sizeof memory};
  const Status status = driver.launch(device, function.value(), launch);
  Outcome outcome{std::vector<uint32_t>(static_cast<std::size_t>(workgroup_size)), status.message()};
  std::memcpy(outcome.words.data(), memory, bytes);
  driver.free(device, memory);
  driver.unload(device, module.value());
  return outcome;
}

void expect_error(const Outcome& outcome, const std::string& part) {
  EXPECT_NE(outcome.error.find(part), std::string::npos) << "\"" << outcome.error << "\" and not " << part;
}

class IsaDetectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = gpu::isa_driver().available(); !status.ok()) GTEST_SKIP() << status.message();
    if (const auto clang = gpu::offline_clang_compiler(); !clang.ok()) GTEST_SKIP() << clang.status().message();
  }
};

TEST_F(IsaDetectors, APermlaneExchangesRows) {
  const Outcome outcome = run("x[lane] = __builtin_amdgcn_permlanex16(x[lane], x[lane], 0x76543210u, 0xfedcba98u, false, false);");
  ASSERT_EQ(outcome.error, "");
  for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(outcome.words[l], 100 + (l ^ 16U));
}

// What LLVM made of row sums: the exchange under a branch that turns its other lanes off.
constexpr const char* kUnderBranch =
    "u s = x[lane]; if (lane < 16) { u r; asm volatile(\"v_permlanex16_b32 %0, %1, %2, %3 op_sel:[FI,1]\" : \"=v\"(r) : \"v\"(s), "
    "\"s\"(0x76543210u), \"s\"(0xfedcba98u)); x[lane] = s + r; }";

TEST_F(IsaDetectors, AnExchangeReadsALaneThatIsOff) {
  std::string body = kUnderBranch;
  for (const char* arch : {"gfx1100", "gfx1151", "gfx1201"}) {
    body.replace(body.find("op_sel:[") + 8, 2, "0 ");
    expect_error(run(body, arch), "which is off");
    body = kUnderBranch;
  }
  body.replace(body.find("op_sel:[") + 8, 2, "1 ");
  EXPECT_EQ(run(body).error, "") << "fetch-inactive reads it";
}

TEST_F(IsaDetectors, MemoryOutsideOfAllocations) {
  expect_error(run("x[lane + 32] = 1;"), "writes 4 bytes");
  expect_error(run("x[lane] = x[lane + 100];"), "that is in no allocation");
}

TEST_F(IsaDetectors, LdsOutsideOfTheWorkgroup) {
  expect_error(
      run("u r; asm volatile(\"ds_load_b32 %0, %1\\ns_waitcnt lgkmcnt(0)\" : \"=v\"(r) : \"v\"(lane * 4 + 4096)); x[lane] = r;"),
      "of LDS at 4096");
}

TEST_F(IsaDetectors, ALoadThatIsNotWaitedFor) {
  expect_error(
      run("u r; asm volatile(\"global_load_b32 %0, %1, off\\nv_mov_b32 %0, %0\" : \"=&v\"(r) : \"v\"(x + lane)); x[lane] = r;"),
      "reads a register whose load was not waited for");
}

TEST_F(IsaDetectors, AnInstructionThatItDoesNotKnow) {
  expect_error(run("u r; asm volatile(\"v_sin_f32 %0, %1\" : \"=v\"(r) : \"v\"(lane)); x[lane] = r;"), "v_sin_f32");
}

TEST_F(IsaDetectors, RegistersThatNothingWroteHoldAnything) {
  const std::string body = "u r; asm volatile(\"v_mov_b32 %0, v200\" : \"=v\"(r) : : \"v200\"); x[lane] = r;";
  ASSERT_TRUE(gpu::isa::set_schedule("random:1").ok());
  const Outcome one = run(body);
  ASSERT_TRUE(gpu::isa::set_schedule("random:2").ok());
  const Outcome other = run(body);
  ASSERT_TRUE(gpu::isa::set_schedule("in-order").ok());
  ASSERT_EQ(one.error, "");
  EXPECT_NE(one.words, other.words);
}

TEST_F(IsaDetectors, AMatrixInstructionWhereLanesAreOff) {
  expect_error(
      run("typedef float F8 __attribute__((ext_vector_type(8))); typedef u U8 __attribute__((ext_vector_type(8)));"
          "if (lane < 16) { F8 c = {}; U8 a = {}; asm volatile(\"v_wmma_f32_16x16x16_f16 %0, %1, %1, %0\" : \"+v\"(c) : \"v\"(a));"
          "x[lane] = c[0]; }"),
      "where lanes are off");
}

TEST_F(IsaDetectors, AStepOutOfTheOrdersIsRefused) {
  EXPECT_FALSE(gpu::isa::set_schedule("sideways").ok());
  EXPECT_FALSE(gpu::isa::set_schedule("random:").ok());
}

TEST_F(IsaDetectors, CountsInstructions) {
  static_cast<void>(gpu::isa::take_counts());
  ASSERT_EQ(run("x[lane] = lane;").error, "");
  const gpu::isa::Counts counts = gpu::isa::take_counts();
  EXPECT_EQ(counts[static_cast<std::size_t>(gpu::isa::Kind::global)], 1U);
  EXPECT_GT(counts[static_cast<std::size_t>(gpu::isa::Kind::valu)], 0U);
}

}  // namespace
}  // namespace fulmen::testing
