// The forward pass with products in fp8, on the one emulated chip that has it, and on the machine's
// GPU where it is a Hopper.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/gpu_devices.h"
#include "runtime/kv_formats.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr float kLargest = 7;  // of numbers that are compared with their codes

class GpuPrefillFp8 : public HopperTest {
 protected:
  GpuPrefillFp8() : HopperTest("prefill_fp8", false, Precision::fp8) {}
};

// Dims of one and two panels of bytes, and parts of them; tiles of one to three warpgroups; rows
// that are no whole pieces of 16 bytes.
TEST_P(GpuPrefillFp8, ShapesAndLayouts) {
  Random random(9700);
  for (const int64_t dim : {59, 64, 80, 128, 200, 256}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(65, 200),
                         random.between(150, 420), random);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::odd_strides});
    s.lse = random.chance(0.7);
    check(s, random);
  }
  CaseSpec few = spec_of(DType::bf16, 64, random.between(1, 3), random.between(1, 700), random);
  few.head_dim_v = 96;
  check(few, random);
  few.seqlen_q = random.between(60, 130);
  check(few, random, 1);  // tensors at no multiple of 16 bytes
}

// Every scheduler and tile shape that its tuning has; bands, a softcap and sinks.
TEST_P(GpuPrefillFp8, TunedShapesAndBands) {
  Random random(9710);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(200, 400),
                         random.between(300, 600), random);
    s.num_heads = 2;
    s.num_kv_heads = random.between(1, 2);
    s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    if (random.chance(0.4)) s.window_left = random.between(0, 200);
    s.softcap = random.chance(0.3) ? 20.0F : 0.0F;
    s.sinks = random.chance(0.5);
    const Case c(s, random);
    AttentionOptions options = c.options;
    options.kernel = kernel();
    const Result<Plan> usual = plan(c.problem(), device(), options);
    ASSERT_TRUE(usual.ok()) << usual.status().message();
    const Result<KernelTuning> tuning = kernel_tuning(c.problem(), device(), options);
    ASSERT_TRUE(tuning.ok()) << tuning.status().message();
    ASSERT_GT(tuning->configurations.size(), 4U);
    Case tuned(s, random);
    const auto last = static_cast<int64_t>(tuning->configurations.size()) - 1;
    tuned.options.tuning =
        tuning->configurations[static_cast<std::size_t>(random.between(0, last))];
    EXPECT_TRUE(verified(tuned, kernel(), {device()})) << to_string(s) << tuned.options.tuning;
  }
}

// The tiles of the tail wave have their keys split: five tiles for four multiprocessors.
TEST_P(GpuPrefillFp8, LastRoundInSplits) {
  Random random(9715);
  CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick({64, 128}),
                       random.between(100, 120), random.between(2700, 2900), random);
  s.num_heads = 5;
  s.sinks = random.chance(0.5);
  Case c(s, random);
  c.options.kernel = kernel();
  const Result<Plan> planned = plan(c.problem(), device(), c.options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_TRUE(!device().starts_with("emulated") || planned->config().num_splits > 1)
      << planned->explain();
  EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);

  s.head_dim_v = 59;  // parts of outputs are pairs of floats: no splits
  Case odd(s, random);
  EXPECT_TRUE(verified(odd, kernel(), {device()})) << to_string(s);
}

// The largest number of a head, or of 64 queries, may be next to none.
TEST_P(GpuPrefillFp8, NumbersNextToZero) {
  Random random(21'908);
  for (const bool queries : {false, true}) {
    CaseSpec s = spec_of(DType::bf16, 48, 70, 90, random);
    (queries ? s.q_size : s.kv_size) = 1e-37F;
    Case c(s, random);
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
  }
}

// Against the rounded numbers, in double precision: a tile has all keys, so that probabilities are
// rounded relative to the row's largest; and the largest of each scale's numbers is 7, so that none
// is between two codes by rounding alone.
// Without a product there is none in fp8, either: other families serve, and plans for ranges are
// made from 0 on.
TEST_P(GpuPrefillFp8, EmptyCallsAreServed) {
  Random random(21'907);
  CaseSpec spec = spec_of(DType::bf16, 64, 70, 90, random);
  spec.precision = Precision::fp8;
  const Case c(spec, random);
  AttentionOptions options = c.options;
  options.vary_batch = options.vary_seqlen_k = true;
  const Result<Plan> range = plan(c.problem(), device(), options);
  EXPECT_TRUE(range.ok()) << range.status().message();
  for (int64_t Problem::* length : {&Problem::batch, &Problem::seqlen_q, &Problem::seqlen_k}) {
    Problem problem = c.problem();
    problem.*length = 0;
    const Result<Plan> planned = plan(problem, device(), c.options);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
  }
}

TEST_P(GpuPrefillFp8, RoundsAsDocumented) {
  constexpr int64_t kQueries = 100, kKeys = 96, kDim = 128;
  Random random(9720);
  CaseSpec s = spec_of(DType::bf16, kDim, kQueries, kKeys, random);
  s.layout = Layout::bshd;
  Case c(s, random);
  const auto writable = [](const Tensor& t) {
    return Tensor{const_cast<void*>(t.data), t.dtype, t.shape, t.strides};
  };
  const Tensor q = writable(c.tensors.q), k = writable(c.tensors.k), v = writable(c.tensors.v);
  const auto put_largest = [](const Tensor& t, int64_t rows, int64_t every) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < kDim; ++d)
        Case::set(t, {0, i, 0, d}, std::clamp(Case::get(t, {0, i, 0, d}), -kLargest, kLargest));
      if (i % every == 0) Case::set(t, {0, i, 0, i % kDim}, kLargest);
    }
  };
  put_largest(q, kQueries, 64);
  put_largest(k, kKeys, kKeys);
  put_largest(v, kKeys, kKeys);
  c.options.tuning = "block_m=128,block_n=128,min_workgroups=1";
  const Status status = run_kernel(c, kernel(), {device()});
  ASSERT_TRUE(status.ok()) << status.message();
  const auto rounded = [](double x, double scale) {
    const uint8_t code = reference::to_fp8(DType::fp8_e4m3, static_cast<float>(x / scale));
    return double{reference::from_fp8(DType::fp8_e4m3, code)} * scale;
  };
  const auto number = [&](const Tensor& t, int64_t i, int64_t d) {
    return rounded(Case::get(t, {0, i, 0, d}), double{kLargest} / 448);
  };
  const double softmax_scale = c.problem().softmax_scale;
  // A real GPU's sums of products in fp8 have fewer bits than fp32.
  const double of_sums = GetParam().starts_with("cuda") ? 2e-3 : 1e-5;
  double error = 0, size = 0;
  for (int64_t i = 0; i < kQueries; ++i) {
    std::vector<double> scores(kKeys);
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t d = 0; d < kDim; ++d)
        scores[j] += softmax_scale * number(q, i, d) * number(k, j, d);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - max);
    EXPECT_NEAR(Case::get(c.tensors.lse, {0, 0, i, 0}), max + std::log(sum), of_sums) << i;
    for (int64_t d = 0; d < kDim; ++d) {
      double out = 0;
      for (int64_t j = 0; j < kKeys; ++j)
        out += rounded(std::exp(scores[j] - max), 1.0 / 64) * number(v, j, d) / sum;
      const double difference = Case::get(c.tensors.out, {0, i, 0, d}) - out;
      error += difference * difference;
      size += out * out;
    }
  }
  // bf16's rounding is 0.0017 of each, and few probabilities are that near to a code's bound; of a
  // real GPU's sums, which are off by 2e-3, some 2 in 100 are: their codes are the next ones.
  EXPECT_LT(std::sqrt(error / size), GetParam().starts_with("cuda") ? 0.008 : 0.003);
}

// What it refuses, in words; and that it is not chosen where nobody asks for it.
TEST_P(GpuPrefillFp8, Refusals) {
  Random random(9730);
  CaseSpec s = spec_of(DType::bf16, 64, 200, 300, random);
  s.bias = true;
  const Case biased(s, random);
  const Result<std::vector<Candidate>> candidates_of =
      fulmen::candidates(biased.problem(), device());
  ASSERT_TRUE(candidates_of.ok());
  int found = 0;
  for (const Candidate& candidate : candidates_of.value()) {
    if (candidate.kernel != kernel()) continue;
    ++found;
    EXPECT_FALSE(candidate.support.yes);
    EXPECT_NE(candidate.support.reason.find("no bias"), std::string::npos)
        << candidate.support.reason;
  }
  EXPECT_EQ(found, 1);
  s.bias = false;
  s.precision = Precision::exact;
  expect_reason(s, "its products are in 8 bits alone", random);
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuPrefillFp8, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
