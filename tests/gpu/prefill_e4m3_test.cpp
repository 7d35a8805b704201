// The forward pass with products in fp8 by prefill.h's tiles, on an emulated chip of each target
// that has it and on the machine's GPU.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "runtime/kv_formats.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// A chip of each target that has the instruction: that tests run on, or the target's first one.
std::vector<std::string> e4m3_devices() {
  std::vector<std::string> names;
  for (const gpu::Target* target : gpu::targets()) {
    if (!target->prefill_e4m3) continue;
    std::string_view chip;
    for (const gpu::ChipFacts& facts : target->chips) {
      const bool is_for_tests = facts.arch == target->test_chips.front();
      if (facts.multiplies_e4m3 && (chip.empty() || is_for_tests)) chip = facts.arch;
    }
    names.push_back("emulated:" + std::string(chip));
  }
  for (const std::string& name : gpu_devices()) {
    if (name.starts_with("hip") || name.starts_with("cuda")) names.push_back(name);
  }
  return names;
}

class GpuPrefillE4m3 : public GpuTest {
 protected:
  // "emulated.prefill_e4m3.gfx11"; empty: the device has none.
  static std::string kernel() {
    Random random(1);
    CaseSpec s = spec_of(DType::bf16, 64, 70, 90, random);
    const Case c(s, random);
    for (const std::string& name : kernels_for(c.problem(), device())) {
      if (name.find(".prefill_e4m3.") != std::string::npos) return name;
    }
    return "";
  }
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || !kernel().empty()) return;
    ASSERT_FALSE(device().starts_with("emulated"));
    GTEST_SKIP() << device() << " has no such products in fp8";
  }
  static CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                          Random& random) {
    CaseSpec s = small_spec(dtype, head_dim, random);
    s.precision = Precision::fp8;
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
TEST_P(GpuPrefillE4m3, ShapesAndLayouts) {
  Random random(9900);
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

// The largest numbers are of several parts, of which the last has a few rows.
TEST_P(GpuPrefillE4m3, ManyKeys) {
  Random random(9905);
  check(spec_of(DType::bf16, 64, random.between(1, 40), 1024 + random.between(1, 9), random),
        random);
  CaseSpec s = spec_of(DType::fp16, 32, 3, 64 * 512 + random.between(1, 600), random);
  check(s, random);
}

TEST_P(GpuPrefillE4m3, Features) {
  Random random(9910);
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

// The values of its tuning: other tiles, one or two buffers, queries in LDS.
TEST_P(GpuPrefillE4m3, TunedShapes) {
  Random random(9920);
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

// The largest number of a head, or of 64 queries, may be next to none.
TEST_P(GpuPrefillE4m3, NumbersNextToZero) {
  Random random(9925);
  for (const bool queries : {false, true}) {
    CaseSpec s = spec_of(DType::bf16, 48, 70, 90, random);
    (queries ? s.q_size : s.kv_size) = 1e-37F;
    s.softcap = random.chance(0.5) ? 10.0F : 0.0F;
    check(s, random);
  }
}

// Against the rounded numbers, in double precision: a tile has all keys, so that probabilities are
// rounded relative to the row's largest; and the largest of each scale's numbers is 7, so that none
// is between two codes by rounding alone.
TEST_P(GpuPrefillE4m3, RoundsAsDocumented) {
  constexpr int64_t kQueries = 100, kKeys = 32, kDim = 128;
  static constexpr float kMost = 7;  // of numbers that are compared with their codes
  Random random(9930);
  CaseSpec s = spec_of(DType::bf16, kDim, kQueries, kKeys, random);
  s.layout = Layout::bshd;
  s.lse = true;
  Case c(s, random);
  const auto writable = [](const Tensor& t) {
    return Tensor{const_cast<void*>(t.data), t.dtype, t.shape, t.strides};
  };
  const Tensor q = writable(c.tensors.q), k = writable(c.tensors.k), v = writable(c.tensors.v);
  const auto put_largest = [](const Tensor& t, int64_t rows, int64_t every) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < kDim; ++d)
        Case::set(t, {0, i, 0, d}, std::clamp(Case::get(t, {0, i, 0, d}), -kMost, kMost));
      if (i % every == 0) Case::set(t, {0, i, 0, i % kDim}, kMost);
    }
  };
  put_largest(q, kQueries, 64);
  put_largest(k, kKeys, kKeys);
  put_largest(v, kKeys, kKeys);
  const Status status = run_kernel(c, kernel(), {device()});
  ASSERT_TRUE(status.ok()) << status.message();
  const auto rounded = [](double x, double scale) {
    const uint8_t code = reference::to_fp8(DType::fp8_e4m3, static_cast<float>(x / scale));
    return double{reference::from_fp8(DType::fp8_e4m3, code)} * scale;
  };
  const auto number = [&](const Tensor& t, int64_t i, int64_t d) {
    return rounded(Case::get(t, {0, i, 0, d}), double{kMost} / 448);
  };
  // NVIDIA's sums of products in fp8 have fewer bits than fp32.
  const bool cuts_sums = device().starts_with("cuda");
  double error = 0, size = 0;
  for (int64_t i = 0; i < kQueries; ++i) {
    std::vector<double> scores(kKeys);
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t d = 0; d < kDim; ++d)
        scores[static_cast<std::size_t>(j)] +=
            c.problem().softmax_scale * number(q, i, d) * number(k, j, d);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - max);
    EXPECT_NEAR(Case::get(c.tensors.lse, {0, 0, i, 0}), max + std::log(sum),
                cuts_sums ? 2e-3 : 1e-5)
        << i;
    for (int64_t d = 0; d < kDim; ++d) {
      double out = 0;
      for (int64_t j = 0; j < kKeys; ++j)
        out += rounded(std::exp(scores[static_cast<std::size_t>(j)] - max), 1.0 / 64) *
               number(v, j, d) / sum;
      const double difference = Case::get(c.tensors.out, {0, i, 0, d}) - out;
      error += difference * difference;
      size += out * out;
    }
  }
  // bf16's rounding is 0.0017 of each. Sums that are cut off make some codes the next ones.
  EXPECT_LT(std::sqrt(error / size), cuts_sums ? 0.008 : 0.003);
}

TEST_P(GpuPrefillE4m3, EmptyCallsAreServed) {
  Random random(9935);
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
TEST_P(GpuPrefillE4m3, Refusals) {
  Random random(9940);
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

// NVIDIA's chips that have the instruction take it; the others say that they have none.
TEST(PrefillE4m3, RunsWhereNvidiaHasTheInstruction) {
  Random random(9945);
  CaseSpec s = small_spec(DType::bf16, 64, random);
  s.precision = Precision::fp8;
  const Case c(s, random);
  for (const std::string name :
       {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_121"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(name, storage, chip)) << name;
    int found = 0;
    for (const gpu::Family* family : gpu::families()) {
      if (family->name() != "prefill_e4m3" || !chip.runs(family->target())) continue;
      ++found;
      const Support support = family->serves(c.problem(), chip);
      const bool has = name == "sm_89" || name.starts_with("sm_12");
      EXPECT_EQ(support.yes, has) << name << ": " << support.reason;
      if (has) continue;
      EXPECT_NE(support.reason.find(name + " has no instruction"), std::string::npos)
          << support.reason;
    }
    EXPECT_EQ(found, 1) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuPrefillE4m3, ::testing::ValuesIn(e4m3_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
