// The forward pass with q k^T in int8, on an emulated chip of each target that has it and on the
// machine's GPU.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/gpu_devices.h"
#include "support/exact_cosine.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

bool has_int8(const gpu::Target& target) { return target.prefill_int8.has_value(); }

std::vector<std::string> int8_devices() {
  std::vector<std::string> names;
  for (const std::string& chip : test_chips(has_int8, Chips::one_of_each_target))
    names.push_back("emulated:" + chip);
  for (const std::string& name : gpu_devices()) {
    if (name.starts_with("hip") || name.starts_with("cuda")) names.push_back(name);
  }
  return names;
}

class GpuPrefillInt8 : public GpuTest {
 protected:
  // "emulated.prefill_int8.gfx11"; empty: the device has none.
  static std::string kernel() {
    Random random(1);
    CaseSpec s = spec_of(DType::bf16, 64, 70, 90, random);
    const Case c(s, random);
    for (const std::string& name : kernels_for(c.problem(), device())) {
      if (name.find(".prefill_int8.") != std::string::npos) return name;
    }
    return "";
  }
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || !kernel().empty()) return;
    ASSERT_FALSE(device().starts_with("emulated"));
    GTEST_SKIP() << device() << " has no products in int8";
  }
  static CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                          Random& random) {
    CaseSpec s = small_spec(dtype, head_dim, random);
    s.precision = Precision::int8;
    s.batch = s.num_heads = s.num_kv_heads = 1;
    s.seqlen_q = seqlen_q;
    s.seqlen_k = seqlen_k;
    return s;
  }
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const {
    if (!drawn(2)) return;
    Case c(spec, random);
    c.make_inputs_read_only();
    EXPECT_TRUE(verified(c, kernel(), {device(), shift})) << to_string(spec);
  }
};

// Every tile shape, dims that fill no operand, odd lengths, heads that share keys, and rows that
// are no whole pieces of 16 bytes.
TEST_P(GpuPrefillInt8, ShapesAndLayouts) {
  Random random(9800);
  for (const int64_t dim : {16, 40, 59, 64, 80, 128, 200, 256}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(1, 200),
                         random.between(1, 300), random);
    s.batch = random.between(1, 2);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 3);
    if (random.chance(0.3)) s.head_dim_v = random.between(1, 256);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::odd_strides});
    s.lse = random.chance(0.7);
    check(s, random, random.chance(0.3) ? 1 : 0);
  }
}

TEST_P(GpuPrefillInt8, OutputsPointWhereExactOnesDo) {
  Random random(9803);
  for (const bool outliers : {false, true}) {
    if (!drawn(2)) continue;
    Case c(spec_of(DType::bf16, 64, 96, 256, random), random);
    if (outliers) shift_channels(c);
    ASSERT_TRUE(verified(c, kernel(), {device(), 0}));
    EXPECT_GE(exact_cosine(c), kInt8Cosine) << (outliers ? "channels around 10" : "normal numbers");
  }
}

// The keys' sums are of several parts, of which the last has a few rows.
TEST_P(GpuPrefillInt8, ManyKeys) {
  Random random(9805);
  check(spec_of(DType::bf16, 64, random.between(1, 40), 1024 + random.between(1, 9), random),
        random);
  CaseSpec s = spec_of(DType::fp16, 32, 3, 64 * 512 + random.between(1, 600), random);
  check(s, random);
}

TEST_P(GpuPrefillInt8, Features) {
  Random random(9810);
  const auto any = [&] {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick({32, 64, 128}),
                         random.between(20, 200), random.between(20, 300), random);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    return s;
  };
  for (const Causal causal : {Causal::bottom_right, Causal::top_left}) {
    CaseSpec s = any();
    s.causal = causal;
    check(s, random);
  }
  CaseSpec s = any();
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.sinks = random.chance(0.5);
  check(s, random);
  s = any();
  s.sinks = true;
  check(s, random);
  s = any();
  s.softcap = 20;
  check(s, random);
  for (const DType dtype : {DType::fp32, s.dtype}) {
    s = any();
    s.bias = true;
    s.bias_dtype = dtype;
    s.bias_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    check(s, random);
  }
  s = any();
  s.alibi = static_cast<int>(random.between(1, 2));
  s.scale = random.chance(0.5) ? -0.1F : 0.0F;
  check(s, random);
}

// Keys that no query may attend do not count in the scales: they may be NaN.
TEST_P(GpuPrefillInt8, MaskedKeysMayHoldAnything) {
  Random random(9815);
  CaseSpec s = spec_of(DType::bf16, 64, 20, 200, random);
  s.window_left = 30;
  s.window_right = 10;
  s.nan_in_masked = true;
  check(s, random);
  s.window_left = s.window_right = -1;
  s.causal = Causal::top_left;
  check(s, random);
}

// The values of its tuning: other tiles, one or two buffers, queries in LDS.
TEST_P(GpuPrefillInt8, TunedShapes) {
  Random random(9820);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(60, 160),
                         random.between(100, 300), random);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.softcap = random.chance(0.3) ? 20.0F : 0.0F;
    Case c(s, random);
    AttentionOptions options = c.options;
    options.kernel = kernel();
    const Result<KernelTuning> tuning = kernel_tuning(c.problem(), device(), options);
    ASSERT_TRUE(tuning.ok()) << tuning.status().message();
    ASSERT_GT(tuning->configurations.size(), 3U);
    const auto last = static_cast<int64_t>(tuning->configurations.size()) - 1;
    c.options.tuning = tuning->configurations[static_cast<std::size_t>(random.between(0, last))];
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s) << c.options.tuning;
  }
}

// The largest number of a head's keys, or of a query, may be next to none; a head's keys may all be
// the same, and numbers may be large beside their differences.
TEST_P(GpuPrefillInt8, RangesOfNumbers) {
  Random random(9825);
  for (const bool queries : {false, true}) {
    CaseSpec s = spec_of(DType::bf16, 48, 70, 90, random);
    (queries ? s.q_size : s.kv_size) = 1e-37F;
    s.softcap = random.chance(0.5) ? 10.0F : 0.0F;
    check(s, random);
  }
  for (const double varying : {0.0, 0.1}) {
    Case c(spec_of(DType::fp16, 64, 50, 90, random), random);
    const Tensor k{const_cast<void*>(c.tensors.k.data), c.tensors.k.dtype, c.tensors.k.shape,
                   c.tensors.k.strides};
    for (int64_t j = 0; j < 90; ++j) {
      for (int64_t d = 0; d < 64; ++d) {
        const double own = Case::get(k, {0, j, 0, d});
        Case::set(k, {0, j, 0, d},
                  static_cast<float>(4.0 + static_cast<double>(d % 7) + varying * own));
      }
    }
    EXPECT_TRUE(verified(c, kernel(), {device()})) << varying;
  }
  // Zeros: every score is 0, exactly.
  CaseSpec s = spec_of(DType::bf16, 64, 20, 33, random);
  s.q_size = 0;
  Case c(s, random);
  ASSERT_TRUE(run_kernel(c, kernel(), {device()}).ok());
  for (int64_t i = 0; i < 20; ++i)
    EXPECT_NEAR(Case::get(c.tensors.lse, {0, 0, i, 0}), std::log(33.0), 1e-5);
}

// Against the codes that the contract names, in double precision.
TEST_P(GpuPrefillInt8, RoundsAsDocumented) {
  constexpr int64_t kQueries = 50, kKeys = 96, kDim = 128;
  Random random(9830);
  for (const float softcap : {0.0F, 30.0F}) {
    CaseSpec s = spec_of(DType::bf16, kDim, kQueries, kKeys, random);
    s.layout = Layout::bshd;
    s.lse = true;
    s.softcap = softcap;
    Case c(s, random);
    const Status status = run_kernel(c, kernel(), {device()});
    ASSERT_TRUE(status.ok()) << status.message();
    const auto q = [&](int64_t i, int64_t d) { return Case::get(c.tensors.q, {0, i, 0, d}); };
    const auto k = [&](int64_t j, int64_t d) { return Case::get(c.tensors.k, {0, j, 0, d}); };
    std::vector<double> mean(kDim);
    double range = 0;
    for (int64_t d = 0; d < kDim; ++d) {
      double& m = mean[static_cast<std::size_t>(d)];
      for (int64_t j = 0; j < kKeys; ++j) m += k(j, d) / static_cast<double>(kKeys);
      for (int64_t j = 0; j < kKeys; ++j) range = std::max(range, std::fabs(k(j, d) - m));
    }
    const auto rounded = [](double x, double most) {
      return std::nearbyint(x * 127 / most) * most / 127;
    };
    double error = 0, size = 0;
    for (int64_t i = 0; i < kQueries; ++i) {
      double most = 0, start = 0;
      for (int64_t d = 0; d < kDim; ++d) {
        most = std::max(most, std::fabs(double{q(i, d)}));
        start += q(i, d) * mean[static_cast<std::size_t>(d)];
      }
      std::vector<double> scores(kKeys);
      for (int64_t j = 0; j < kKeys; ++j) {
        double product = start;
        for (int64_t d = 0; d < kDim; ++d)
          product +=
              rounded(q(i, d), most) * rounded(k(j, d) - mean[static_cast<std::size_t>(d)], range);
        double& score = scores[static_cast<std::size_t>(j)];
        score = product * c.problem().softmax_scale;
        if (softcap > 0) score = softcap * std::tanh(score / softcap);
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (const double score : scores) sum += std::exp(score - top);
      // A few numbers are so near to the middle of two codes that fp32 rounds them elsewhere.
      EXPECT_NEAR(Case::get(c.tensors.lse, {0, 0, i, 0}), top + std::log(sum), 3e-3) << i;
      for (int64_t d = 0; d < kDim; ++d) {
        double out = 0;
        for (int64_t j = 0; j < kKeys; ++j)
          out += std::exp(scores[static_cast<std::size_t>(j)] - top) *
                 Case::get(c.tensors.v, {0, j, 0, d}) / sum;
        const double difference = Case::get(c.tensors.out, {0, i, 0, d}) - out;
        error += difference * difference;
        size += out * out;
      }
    }
    // bf16's rounding is 0.0017 of each; int8's own would be 0.01.
    EXPECT_LT(std::sqrt(error / size), 0.004) << softcap;
  }
}

TEST_P(GpuPrefillInt8, EmptyCallsAreServed) {
  Random random(9835);
  const Case c(spec_of(DType::bf16, 64, 70, 90, random), random);
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
  CaseSpec none = spec_of(DType::bf16, 64, 5, 0, random);
  Case keyless(none, random);
  EXPECT_TRUE(verified(keyless, kernel(), {device()}));
}

// What it refuses, in words; and that it is not chosen where nobody asks for it.
TEST_P(GpuPrefillInt8, Refusals) {
  Random random(9840);
  const auto reason = [&](const CaseSpec& s) -> std::string {
    const Case c(s, random);
    const Result<std::vector<Candidate>> all = candidates(c.problem(), device());
    EXPECT_TRUE(all.ok());
    for (const Candidate& candidate : all.value()) {
      if (candidate.kernel == kernel())
        return candidate.support.yes ? "taken" : candidate.support.reason;
    }
    return "not listed";
  };
  const CaseSpec usual = spec_of(DType::bf16, 64, 200, 300, random);
  EXPECT_EQ(reason(usual), "taken");
  CaseSpec s = usual;
  s.keep = true;
  EXPECT_NE(reason(s).find("no masks in memory"), std::string::npos) << reason(s);
  s = usual;
  s.dtype = DType::fp32;
  EXPECT_NE(reason(s).find("fp16 and bf16"), std::string::npos) << reason(s);
  s = usual;
  s.head_dim = 272;
  EXPECT_NE(reason(s).find("heads of up to 256"), std::string::npos) << reason(s);
  for (bool CaseSpec::* lengths : {&CaseSpec::packed_k, &CaseSpec::used_k}) {
    s = usual;
    s.*lengths = true;
    EXPECT_NE(reason(s), "taken");
  }
  s = usual;
  s.dropout = 0.1F;
  EXPECT_NE(reason(s), "taken");
  s = usual;
  s.precision = Precision::exact;
  EXPECT_NE(reason(s).find("its products are in 8 bits alone"), std::string::npos) << reason(s);
  const Case exact(s, random);
  const Result<Plan> planned = plan(exact.problem(), device(), exact.options);
  ASSERT_TRUE(planned.ok());
  EXPECT_NE(planned->config().kernel, kernel());
  // Where it refuses no other kernel of the chip has the precision: the call is refused, too.
  s = usual;
  s.keep = true;
  const Case masked(s, random);
  const Result<Plan> refused = plan(masked.problem(), device(), masked.options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("no masks in memory"), std::string::npos)
      << refused.status().message();
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuPrefillInt8, ::testing::ValuesIn(int8_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
