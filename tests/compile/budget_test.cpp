// What the main loop of the forward pass may cost on AMD's chips: vector instructions beside its products, and waves a SIMD.
#include <gtest/gtest.h>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/report/report.h"
#include "gpu/compile/shipped.h"

namespace fulmen::test {
namespace {

struct Budget {
  const char* arch;
  int vector;     // instructions for 512 products of 16 x 16 x 16
  int occupancy;  // waves a SIMD, at least: docs/performance/amd.md
};

class MainLoop : public ::testing::TestWithParam<Budget> {};

TEST_P(MainLoop, Of128DimsKeepsToItsBudget) {
  const auto compiler = gpu::offline_clang_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  if (compiler.value()->identity().find("-19") == std::string::npos)
    GTEST_SKIP() << "another compiler than clang 19 counts otherwise";
  const Budget budget = GetParam();
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(budget.arch, storage, chip));
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

INSTANTIATE_TEST_SUITE_P(Amd, MainLoop,
                         ::testing::Values(Budget{"gfx1100", 2300, 5}, Budget{"gfx1151", 2300, 5}, Budget{"gfx1201", 1500, 6},
                                           Budget{"gfx942", 700, 2}),
                         [](const auto& info) { return std::string(info.param.arch); });

}  // namespace
}  // namespace fulmen::test
