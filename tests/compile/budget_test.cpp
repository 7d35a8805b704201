// What the main loop of the forward pass may cost on AMD's chips: vector instructions beside its products, and waves a SIMD:
// docs/performance/amd.md. The numbers stand in gpu/targets.
#include <gtest/gtest.h>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/report/report.h"
#include "gpu/compile/shipped.h"
#include "support/test_chips.h"

namespace fulmen::test {
namespace {

class MainLoop : public ::testing::TestWithParam<std::string> {};

TEST_P(MainLoop, Of128DimsKeepsToItsBudget) {
  const auto compiler = gpu::offline_clang_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  if (compiler.value()->identity().find("-19") == std::string::npos)
    GTEST_SKIP() << "another compiler than clang 19 counts otherwise";
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  ASSERT_TRUE(chip.target->loop_budget) << "gpu/targets/" << chip.target->name << ".h: what may the loop cost?";
  const gpu::LoopBudget budget = *chip.target->loop_budget;
  int kernels = 0;
  for (const gpu::Specialisation& s : gpu::shipped_kernels(chip, false)) {
    if (s.entry != "forward/prefill.h" || s.head_dim != 128 || s.variable) continue;
    const auto request = compile_request(s, chip, gpu::Platform::amd);
    ASSERT_TRUE(request.ok()) << request.status().message();
    const auto code = gpu::cached_compile(compiler.value(), {}, request.value());
    ASSERT_TRUE(code.ok()) << code.status().message();
    const KernelReport report = gpu::report_on(chip, request.value(), code.value(), s.lds_bytes);
    if (!report.loop_missing.empty()) GTEST_SKIP() << report.loop_missing;
    ASSERT_GT(report.loop.matrix_products, 0) << report.kernel;
    EXPECT_LE(512 * report.loop.vector / report.loop.matrix_products, budget.vector) << report.kernel;
    EXPECT_GE(report.occupancy, budget.occupancy) << report.kernel;
    ++kernels;
  }
  EXPECT_EQ(kernels, 3) << "bf16, with a band and without, and fp16";
}

INSTANTIATE_TEST_SUITE_P(Amd, MainLoop, ::testing::ValuesIn(testing::test_chips(testing::is_amd)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::test
