// Limits of main loops on AMD's chips: vector instructions a product and waves a SIMD in prefill,
// LDS instructions in the pass for dk and dv (docs/performance/amd.md). The numbers stand in
// gpu/targets.
#include <gtest/gtest.h>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/report/report.h"
#include "gpu/compile/toolchains/first_llvm.h"
#include "gpu/shipped.h"
#include "support/test_chips.h"

namespace fulmen::test {
namespace {

class MainLoop : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  }
  // Reports of the main kernels of the chip that `wanted` selects, compiled by clang 19, or by 22
  // where 19 does not know the chip. Empty: the test was skipped, or failed.
  template <class Wanted>
  void report(const Wanted& wanted) {
    const auto compiler = gpu::offline_clang_compiler();
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
    const std::string usual = gpu::first_llvm(GetParam()) > 19 ? "-22" : "-19";
    if (compiler.value()->identity(GetParam()).find(usual) == std::string::npos)
      GTEST_SKIP() << "another compiler than clang" << usual << " counts otherwise";
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
    ASSERT_TRUE(chip.target->loop_budget)
        << "gpu/targets/" << chip.target->name << ".h: what may the loop cost?";
    budget = *chip.target->loop_budget;
    for (const gpu::Specialisation& s : gpu::shipped_kernels(chip, false)) {
      if (!wanted(s)) continue;
      const auto request = compile_request(s, chip, gpu::Platform::amd);
      ASSERT_TRUE(request.ok()) << request.status().message();
      const auto code = gpu::cached_compile(compiler.value(), {}, request.value());
      ASSERT_TRUE(code.ok()) << code.status().message();
      reports.push_back(gpu::report_on(chip, request.value(), code.value(), s.lds_bytes));
      if (!reports.back().loop_missing.empty()) GTEST_SKIP() << reports.back().loop_missing;
      ASSERT_GT(reports.back().loop.matrix_products, 0) << reports.back().kernel;
    }
  }
  gpu::LoopBudget budget{};
  std::vector<KernelReport> reports;
};

TEST_P(MainLoop, Of128DimsKeepsToItsBudget) {
  report([](const gpu::Specialisation& s) {
    return s.entry == "forward/prefill.h" && s.head_dim == 128 && !s.variable;
  });
  if (IsSkipped() || HasFatalFailure()) return;
  for (const KernelReport& r : reports) {
    EXPECT_LE(512 * r.loop.vector / r.loop.matrix_products, budget.vector) << r.kernel;
    EXPECT_GE(r.occupancy, budget.occupancy) << r.kernel;
  }
  EXPECT_EQ(reports.size(), 3U) << "bf16, with a band and without, and fp16";
}

// LDS has to keep up with the matrix units: on RDNA4 dk and dv have their keys and values in
// registers.
TEST_P(MainLoop, OfKeysOf128DimsKeepsToItsBudget) {
  constexpr int kGivesDkDv = 6;
  report([](const gpu::Specialisation& s) {
    return s.entry == "backward/backward.h" && s.head_dim == 128 && s.outputs == kGivesDkDv &&
           !s.variable && s.bias < 0;
  });
  if (IsSkipped() || HasFatalFailure()) return;
  for (const KernelReport& r : reports) {
    EXPECT_LE(512 * r.loop.lds / r.loop.matrix_products, budget.keys_lds) << r.kernel;
  }
  EXPECT_EQ(reports.size(), 3U) << "bf16, with a band and without, and fp16";
}

INSTANTIATE_TEST_SUITE_P(Amd, MainLoop, ::testing::ValuesIn(testing::test_chips(testing::is_amd)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::test
