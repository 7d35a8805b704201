// Whole commands on a HIP device: the driver's own calls, hipRTC's code, the first-use check. The
// runtime is a stand-in that checks each call and executes launches by the emulator of AMD's
// instruction set (tests/gpu_drivers/fake/isa_execution.cpp).
#include <nlohmann/json.hpp>

#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/toolchains/compiler.h"
#include "program.h"
#include "support/random.h"

namespace fulmen::test {
namespace {

class HipTest : public ProgramTest {
 protected:
  void SetUp() override {
    if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
    if (const auto objdump = gpu::find_objdump(); !objdump.ok())
      GTEST_SKIP() << objdump.status().message();
    if (const auto clang = gpu::offline_clang_compiler(); !clang.ok())
      GTEST_SKIP() << clang.status().message();
    ProgramTest::SetUp();
    ::setenv("ROCM_PATH", FULMEN_EXECUTING_ROCM, 1);
  }
  void TearDown() override {
    ::unsetenv("ROCM_PATH");
    if (!folder_.empty()) ProgramTest::TearDown();
  }
  // A command that succeeds and breaks no rule of HIP's interface.
  std::string output(const std::vector<std::string>& arguments) const {
    const Outcome outcome = fulmen(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err.find("fake driver: "), std::string::npos) << outcome.err;
    return outcome.out;
  }
};

// A fixed seed: another problem's kernel may have an instruction that the emulator does not know,
// which is no fault of the driver.
TEST_F(HipTest, Verifies) {
  const std::string problems = testing::long_run() ? "3" : "1";
  for (const char* device : {"hip:0", "hip:1"}) {
    EXPECT_NE(output({"verify", "--device", device, "--random", problems, "--seed", "1"})
                  .find(", 0 failed"),
              std::string::npos);
  }
}

TEST_F(HipTest, VerifiesGradients) {
  EXPECT_NE(output({"verify", "--device", "hip:0", "--random", "1", "--seed", "1", "--backward"})
                .find(", 0 failed"),
            std::string::npos);
}

// gfx942, dk and dv with a mask and dropout, whose machine code the check of barriers refused once
// (kept_values.h).
TEST_F(HipTest, VerifiesAKernelThatTheCheckRefused) {
  const std::string text = output({"verify", "--device", "hip:1", "--random", "1", "--seed", "3",
                                   "--backward", "--dtype", "bf16"});
  EXPECT_NE(text.find("hip.backward.cdna3"), std::string::npos) << text;
  EXPECT_NE(text.find(", 0 failed"), std::string::npos) << text;
}

TEST_F(HipTest, TestsItself) {
  const std::string text =
      output({"selftest", "--device", "hip:0", "--only", "3", "--no-emulator"});
  EXPECT_NE(text.find(", 0 failed"), std::string::npos) << text;
}

// Which candidate is fastest, and whether there is time to find out, depends on the machine; every
// machine verifies the candidates.
TEST_F(HipTest, Tunes) {
  const std::string kernel = "hip.prefill.gfx11", cache = path("cache");
  ::setenv("FULMEN_CACHE_DIR", cache.c_str(), 1);
  const std::string text = output({"tune", "--device", "hip:0", "--kernel", kernel, "--problem",
                                   "batch=1,seqlen_q=16,heads=1,head_dim=32,dtype=bf16",
                                   "--minutes", "0.2", "--json", "all.json"});
  ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 1);
  EXPECT_NE(text.find(kernel + " on hip:0"), std::string::npos) << text;
  const auto all = nlohmann::json::parse(read_text(path("all.json")));
  ASSERT_EQ(all.size(), 1U);
  for (const auto& candidate : all[0]["candidates"]) {
    const std::string problem = candidate["problem"];
    EXPECT_EQ(problem.find("wrong results"), std::string::npos) << candidate;
  }
}

}  // namespace
}  // namespace fulmen::test
