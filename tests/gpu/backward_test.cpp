// Every GPU kernel of the backward pass, and dropout in both passes, on emulated chips and on the
// machine's GPU where it has one.
#include <algorithm>
#include <numeric>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuBackward : public GpuTest {};

CaseSpec spec_of(DType dtype, int64_t head_dim, Random& random) {
  CaseSpec s = small_spec(dtype, head_dim, random);
  s.backward = true;
  return s;
}

TEST_P(GpuBackward, QueriesWithoutKeysHaveNoGradient) {
  Random random(7505);
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    CaseSpec s = spec_of(dtype, 64, random);
    s.seqlen_q = 150;
    s.seqlen_k = 100;
    expect_no_gradient_without_keys(s, random);
  }
}

TEST_P(GpuBackward, Features) {
  Random random(7500);
  const auto check = [&](const CaseSpec& s) { EXPECT_GT(expect_all_verified(s, random), 0); };
  CaseSpec s = spec_of(DType::bf16, 64, random);
  check(s);

  // Boards: a bias a head, its gradient the sum over the batch.
  s = spec_of(DType::fp16, 32, random);
  s.batch = 3;
  s.seqlen_q = s.seqlen_k = 64;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.bias_broadcast = {true, false, false};
  check(s);
  s.gradients = {false, false, false, true, false};  // dbias alone
  check(s);
  s.gradients = {true, true, true, true, true};
  s.seqlen_q = random.between(65, 140);  // some queries' tiles attend no key
  s.seqlen_k = random.between(1, 64);
  s.window_left = random.between(0, 30);
  s.window_right = random.between(0, 30);
  s.nan_in_masked = true;
  s.bias_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  check(s);

  s = spec_of(DType::bf16, 128, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  check(s);

  s = spec_of(DType::fp16, 40, random);  // partial dims, rows of odd lengths
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  s.dlse = true;
  check(s);

  s = spec_of(DType::bf16, 96, random);
  s.layout = random.pick({Layout::bhsd, Layout::sbhd});
  s.keep = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  s.nan_in_masked = true;
  s.alibi = static_cast<int>(random.between(1, 2));
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.bias_broadcast = {false, true, true};
  s.dropout = 0.3F;
  check(s);

  s = spec_of(DType::fp32, 80, random);
  s.causal = Causal::bottom_right;
  s.sinks = true;
  s.dropout = 0.3F;
  check(s);
  for (std::size_t wanted = 0; wanted < 3; ++wanted) {
    s = spec_of(DType::bf16, 64, random);
    s.gradients = {};
    s.gradients[wanted] = true;
    check(s);
  }
}

TEST_P(GpuBackward, DropoutForward) {
  Random random(7510);
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    CaseSpec s = spec_of(dtype, 64, random);
    s.backward = false;
    s.dropout = 0.3F;
    s.causal = Causal::bottom_right;
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

// Blocks of random numbers lie on a grid, and bands begin anywhere.
TEST_P(GpuBackward, DropoutInBands) {
  Random random(own_stream(7515));
  for (const bool backward : {false, true}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick({32, 64}), random);
    s.backward = backward;
    s.num_heads = s.num_kv_heads = 1;
    s.dropout = 0.3F;
    s.nan_in_masked = true;
    s.seqlen_q = random.between(20, 60);
    s.seqlen_k = s.seqlen_q + random.between(70, 130);
    s.window_left = random.between(0, 40);
    s.window_right = random.between(0, 20);
    EXPECT_GT(expect_all_verified(s, random), 0);
    // Queries, too, begin anywhere; the first rows attend nothing.
    s.seqlen_q = random.between(100, 180);
    s.seqlen_k = random.between(40, 90);
    s.bias = true;
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

TEST_P(GpuBackward, ShapesAndLayouts) {
  Random random(7520);
  struct Shape {
    DType dtype;
    int64_t dim, seqlen_q, seqlen_k;
  };
  for (const Shape& shape : {Shape{DType::bf16, 64, 1, 147},
                             {DType::bf16, 64, 113, 203},
                             {DType::fp16, 128, 64, 64},
                             {DType::fp16, 128, 130, 33},
                             {DType::bf16, 256, 33, 40},
                             {DType::fp32, 80, 70, 90}}) {
    CaseSpec s = spec_of(shape.dtype, shape.dim, random);
    s.seqlen_q = shape.seqlen_q;
    s.seqlen_k = shape.seqlen_k;
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv});
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

// Problems of short_backward, with several batches a workgroup, one after the other. The grids
// above run it among the others.
TEST_P(GpuBackward, ShortSequences) {
  Random random(own_stream(7560));
  CaseSpec s = spec_of(DType::fp16, random.pick({32, 64, 96, 128}), random);
  s.num_heads = s.num_kv_heads = 1;
  s.batch = 16;
  s.seqlen_q = s.seqlen_k = 64;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.bias_broadcast = {true, false, false};
  const auto check = [&] {
    Case c(s, random);
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.find("short_backward") == std::string::npos) continue;
      EXPECT_TRUE(verified(c, kernel, Where{device()}));
      const std::vector<float> first = c.output_values();
      EXPECT_TRUE(verified(c, kernel, Where{device()}));
      EXPECT_EQ(first, c.output_values()) << kernel << ' ' << to_string(s);
    }
  };
  check();
  // Runs of several boards that do not fill their tiles, the last run a shorter one; dbias of each.
  s.batch = 11;
  s.head_dim = s.head_dim_v = random.pick({32, 96});
  s.seqlen_q = random.pick({17, 63});
  s.seqlen_k = random.between(33, 63);
  s.bias_broadcast = {false, false, false};
  check();
  s.head_dim = s.head_dim_v = 32;
  s.num_heads = s.num_kv_heads = 2;
  s.batch = 3;
  s.bias_dtype = DType::fp32;
  for (const bool over_queries : {false, true}) {
    s.seqlen_q = random.pick({1, 17, 63});
    s.seqlen_k = random.between(33, 64);
    s.bias_broadcast = {true, random.chance(0.5), over_queries};
    check();
  }
  // Where tiles are full four neighbours are added at once: with as few as these, not by all lanes.
  s.seqlen_q = s.seqlen_k = random.pick({32, 64});
  s.bias_broadcast = {true, true, true};
  check();
}

TEST_P(GpuBackward, LengthsOfZeroAndOne) {
  Random random(7530);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  for (const auto& [q, k] :
       {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}, {1, 1}, {1, 300}, {130, 3}, {300, 1}}) {
    s.seqlen_q = q;
    s.seqlen_k = k;
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

TEST_P(GpuBackward, RowsAndKeysWithoutAnyPartner) {
  Random random(7540);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  s.seqlen_q = 120;
  s.seqlen_k = 40;
  s.causal = Causal::bottom_right;  // the first 80 queries attend nothing
  s.dlse = true;
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.causal = Causal::top_left;
  s.seqlen_q = 40;
  s.seqlen_k = 120;  // the last 80 keys are attended by none
  EXPECT_GT(expect_all_verified(s, random), 0);
}

// Atomics are chosen where they are faster and bits may differ from run to run; memory grows in
// proportion to the inputs either way.
TEST(GpuBackwardAtomic, OnlyWhereBitsMayDiffer) {
  const std::string device = "emulated:sm_80";
  if (const std::string why = why_unusable(device); !why.empty()) GTEST_SKIP() << why;
  Random random(7560);
  CaseSpec s = spec_of(DType::bf16, 32, random);
  s.seqlen_q = 70;
  s.seqlen_k = 150;
  Case c(s, random);
  for (const bool deterministic : {false, true}) {
    c.options.deterministic = deterministic;
    const Result<Plan> planned = plan(c.problem(), device, c.options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const std::string& kernel = planned->config().kernel;
    EXPECT_EQ(kernel, deterministic ? "emulated.backward.sm80" : "emulated.backward_atomic.sm80");
    EXPECT_EQ(planned->explain().find("it is not deterministic") != std::string::npos,
              deterministic)
        << planned->explain();
    const int64_t rows = s.batch * s.num_heads * (s.seqlen_q + 16);
    EXPECT_LE(planned->workspace_bytes(),
              static_cast<std::size_t>(4 * rows * (s.head_dim + 2) + 64))
        << planned->explain();
    if (!deterministic) continue;
    AttentionOptions defaults;
    EXPECT_EQ(
        plan(make_backward_problem(c.tensors, defaults).value(), device, defaults)->config().kernel,
        kernel);
    defaults.kernel = "emulated.backward_atomic.sm80";
    const Status refused =
        plan(make_backward_problem(c.tensors, defaults).value(), device, defaults).status();
    EXPECT_EQ(refused.code(), StatusCode::unsupported);
    EXPECT_NE(refused.message().find("options.deterministic = false allows it"), std::string::npos)
        << refused.message();
    ASSERT_TRUE(run_kernel(c, kernel, {device}).ok());
    const std::vector<float> first = c.output_values();
    ASSERT_TRUE(run_kernel(c, kernel, {device}).ok());
    EXPECT_EQ(first, c.output_values());
  }
}

// Chips of one family with other LDS have other tiles.
TEST(GpuBackwardAtomic, TilesOfEveryChip) {
  Random random(7570);
  struct Tiles {
    const char* device;
    int64_t dim, seqlen_k, block_m;
  };
  for (const Tiles& t : {Tiles{"emulated:sm_90", 192, random.between(130, 200), 64},
                         {"emulated:sm_86", 96, random.between(130, 200), 64},
                         {"emulated:sm_86", 128, 20, 64}}) {
    if (!why_unusable(t.device).empty()) continue;
    CaseSpec s = spec_of(DType::fp16, t.dim, random);
    s.batch = 1;
    s.num_heads = s.num_kv_heads = 1;
    s.seqlen_q = random.between(65, 150);
    s.seqlen_k = t.seqlen_k;
    s.causal = Causal::bottom_right;
    Case c(s, random);
    // Another kernel serves few keys, unless this one is forced.
    if (t.seqlen_k < 64) c.options.kernel = "emulated.backward_atomic.sm80";
    const Result<Plan> planned = plan(c.problem(), t.device, c.options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->config().kernel, "emulated.backward_atomic.sm80");
    EXPECT_EQ(planned->config().block_m, t.block_m) << planned->explain();
    EXPECT_TRUE(verified(c, planned->config().kernel, {t.device})) << t.device;
  }
}

TEST_P(GpuBackward, AnyFeatures) {
  constexpr int kCases = 5;
  Random random(own_stream(7550));
  for (int i = 0; i < kCases; ++i) {
    expect_all_verified(limited(random_backward_spec(random)), random, random.chance(0.2) ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackward,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

}  // namespace
}  // namespace fulmen::testing
