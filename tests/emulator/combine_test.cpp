// forward/decode_combine.h by itself, with more splits than a call on the emulated device's few
// compute units has: against double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "runtime/float_formats.h"
#include "support/attention_case.h"

namespace fulmen::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Splits {
  std::string arch, target;
  int64_t dims;
};

// The launch of forward/decode_combine.h in a call that splits its keys.
struct CombineLaunch {
  gpu::KernelLaunch launch;
  kernels::ForwardArguments arguments;
};
CombineLaunch combine_launch(const Problem& problem, const Splits& splits, const gpu::Chip& chip) {
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() != "decode" || family->target().name != splits.target) continue;
    constexpr int kComputeUnits = 100;
    const gpu::LaunchPlan plan = family->plan(problem, chip, kComputeUnits);
    EXPECT_EQ(plan.launches.size(), 2U);
    return {plan.launches.back(), plan.arguments};
  }
  ADD_FAILURE() << "no decode for " << splits.target;
  return {};
}

class Combine : public ::testing::TestWithParam<Splits> {};

TEST_P(Combine, WeighsEverySplit) {
  const Splits& splits = GetParam();
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(splits.arch, storage, chip));
  Random random(8300 + static_cast<uint64_t>(splits.dims));
  CaseSpec spec;
  spec.dtype = DType::bf16;
  spec.seqlen_q = 2;
  spec.seqlen_k = 1100;
  spec.num_heads = spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.head_dim_v = splits.dims;
  const Case c(spec, random);
  auto [launch, arguments] = combine_launch(c.problem(), splits, chip);
  const Result<gpu::CompileRequest> request =
      gpu::compile_request(launch.specialisation, chip, gpu::Platform::emulated);
  ASSERT_TRUE(request.ok()) << request.status().message();

  // Row 0's maxima rise, so that every split outweighs those before; row 1's fall; row 2 has keys
  // in one split only, row 3 in none.
  const int64_t rows = spec.num_heads * spec.seqlen_q;
  ASSERT_EQ(rows, 4);
  for (const int64_t count : {1, 3, 9, 65, 70}) {
    const auto values = static_cast<std::size_t>(count * rows);
    const DeviceArray out(values * static_cast<std::size_t>(splits.dims) * sizeof(float)),
        max(values * sizeof(float)), sum(values * sizeof(float)),
        result(static_cast<std::size_t>(rows * splits.dims) * 2),
        lse(static_cast<std::size_t>(rows) * sizeof(float));
    const int64_t only = random.between(0, count - 1);
    for (int64_t split = 0; split < count; ++split) {
      const float rising = 40.0F * static_cast<float>(split) / static_cast<float>(count);
      const float maxima[] = {rising, -rising, split == only ? 3.0F : -kInfinity, -kInfinity};
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = split * rows + row;
        const bool empty = maxima[row] == -kInfinity;
        max.as<float>()[at] = maxima[row];
        sum.as<float>()[at] =
            empty ? 0.0F : 1.0F + static_cast<float>(random.between(0, 1000)) / 10;
        for (int64_t d = 0; d < splits.dims; ++d)
          out.as<float>()[at * splits.dims + d] = empty ? 0.0F : 30 * random.normal();
      }
    }
    arguments.num_splits = static_cast<int>(count);
    arguments.partial_out = out.as<float>();
    arguments.partial_max = max.as<float>();
    arguments.partial_sum = sum.as<float>();
    arguments.lse = lse.as<float>();
    arguments.lse_head = spec.seqlen_q;
    arguments.lse_row = 1;
    // Heads one after the other: rows lie as the partial results'.
    arguments.out = {result.data(), 0, splits.dims, spec.seqlen_q * splits.dims};
    const Status status = run_request(request.value(), launch.specialisation.lds_bytes, &arguments,
                                      sizeof(arguments), launch.workgroups);
    ASSERT_TRUE(status.ok()) << status.message();

    for (int64_t row = 0; row < rows; ++row) {
      double top = -kInfinity, total = 0;
      for (int64_t split = 0; split < count; ++split)
        top = std::max<double>(top, max.as<float>()[split * rows + row]);
      const auto weight = [&](int64_t split) {
        return std::exp2(max.as<float>()[split * rows + row] - top);
      };
      const bool empty = top == -kInfinity;
      for (int64_t split = 0; !empty && split < count; ++split)
        total += weight(split) * sum.as<float>()[split * rows + row];
      const double wanted_lse = empty ? -kInfinity : (top + std::log2(total)) * std::log(2.0);
      const std::string where = fmt::format("{} splits, row {}", count, row);
      if (empty) {
        EXPECT_EQ(lse.as<float>()[row], -kInfinity) << where;
      } else {
        EXPECT_NEAR(lse.as<float>()[row], wanted_lse, 1e-5 * (1 + std::abs(wanted_lse))) << where;
      }
      for (int64_t d = 0; d < splits.dims; ++d) {
        double wanted = 0, size = 0;
        for (int64_t split = 0; !empty && split < count; ++split) {
          const double part =
              weight(split) * out.as<float>()[(split * rows + row) * splits.dims + d] / total;
          wanted += part;
          size += std::abs(part);
        }
        const float got = reference::load_float(result.data(), DType::bf16, row * splits.dims + d);
        // Half an ulp of bf16, and fp32's rounding of the parts.
        ASSERT_NEAR(got, wanted, std::abs(wanted) / 256 + 1e-5 * size) << where << ", dim " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    On, Combine,
    ::testing::Values(Splits{"gfx1100", "gfx11", 70}, Splits{"gfx942", "cdna3", 64},
                      Splits{"gfx942", "cdna3", 256}, Splits{"sm_80", "sm80", 128},
                      Splits{"sm_80", "sm80", 200}),
    [](const auto& test) { return fmt::format("{}_{}", test.param.arch, test.param.dims); });

}  // namespace
}  // namespace fulmen::testing
