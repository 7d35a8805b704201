// Heads wider than 256: dims that waves and lanes share, and what serves them on which chip.
#include <string>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuWideHeads : public GpuTest {
 protected:
  static CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t head_dim_v, Random& random) {
    CaseSpec s = small_spec(dtype, head_dim, random);
    s.head_dim_v = head_dim_v;
    s.batch = s.num_kv_heads = 1;
    s.num_heads = random.between(1, 2);
    s.seqlen_q = random.between(1, 70);
    s.seqlen_k = random.between(1, 110);
    return s;
  }
  // Latent attention: all heads share one KV head.
  static CaseSpec latent(DType dtype, int64_t heads, int64_t queries, Random& random) {
    CaseSpec s = spec_of(dtype, 576, 512, random);
    s.num_heads = heads;
    s.seqlen_q = queries;
    s.seqlen_k = random.between(130, 300);
    return s;
  }
};

TEST_P(GpuWideHeads, Forward) {
  Random random(own_stream(9400));
  const auto check = [&](const CaseSpec& s, std::size_t shift = 0) {
    EXPECT_GT(expect_all_verified(s, random, shift), 0) << to_string(s);
  };
  CaseSpec s = spec_of(DType::bf16, 512, 512, random);
  s.causal = random.pick({Causal::none, Causal::bottom_right});
  s.nan_in_masked = true;
  check(s);

  s = spec_of(DType::fp16, 320, 320, random);
  s.layout = random.pick({Layout::bhsd, Layout::sbhd});
  s.window_left = random.between(0, 60);
  s.keep = s.nan_in_masked = true;
  check(s);

  s = spec_of(DType::bf16, 288, 261, random);  // the last waves have few dims, or none
  s.layout = Layout::odd_strides;
  s.softcap = 20;
  s.sinks = true;
  check(s);

  s = spec_of(DType::fp32, 512, 384, random);
  s.causal = Causal::top_left;
  check(s);

  s = spec_of(DType::fp16, 576, 40, random);
  s.bias = true;
  s.bias_dtype = DType::fp32;
  check(s, 1);

  s = spec_of(DType::bf16, 64, 512, random);
  s.seqlen_q = 3;
  s.seqlen_k = 600;  // split
  s.alibi = 1;
  check(s);
}

TEST_P(GpuWideHeads, LatentDecode) {
  Random random(own_stream(9410));
  const auto check = [&](const CaseSpec& s) {
    EXPECT_GT(expect_all_verified(s, random), 0) << to_string(s);
  };
  CaseSpec s = latent(DType::bf16, 16, 1, random);
  s.page_size = 64;
  s.used_k = true;
  check(s);
  s = latent(DType::fp16, 40, 2, random);
  s.causal = Causal::bottom_right;
  check(s);
  s = latent(DType::fp32, 5, 3, random);
  check(s);
  s = latent(DType::bf16, 3, 1, random);
  s.head_dim_v = 264;
  s.window_left = 50;
  s.nan_in_masked = true;
  check(s);
  s = latent(DType::fp16, 4, 1, random);
  s.head_dim = s.head_dim_v = 300;
  s.keep = true;
  check(s);
  s = latent(DType::bf16, 2, 1, random);
  s.head_dim = 512;
  s.layout = Layout::odd_strides;
  check(s);
}

TEST_P(GpuWideHeads, Gradients) {
  Random random(own_stream(9420));
  for (const auto& [dtype, dim, dim_v] :
       {std::tuple<DType, int64_t, int64_t>{DType::bf16, 320, 320},
        {DType::fp16, 512, 512},
        {DType::fp32, 288, 500},
        {DType::bf16, 576, 512},
        {DType::fp32, 40, 257},
        {DType::fp16, 300, 17}}) {
    CaseSpec s = spec_of(dtype, dim, dim_v, random);
    s.backward = s.lse = true;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.bias = random.chance(0.3);
    EXPECT_GT(expect_all_verified(s, random), 0) << to_string(s);
  }
}

// What modifies scores, where waves share rows (NVIDIA) and where a wave's rows come to registers
// straight from memory (CDNA).
TEST_P(GpuWideHeads, GradientsOfEachKind) {
  Random random(own_stream(9425));
  const auto spec = [&](DType dtype, int64_t dim, int64_t dim_v) {
    CaseSpec s = spec_of(dtype, dim, dim_v, random);
    s.seqlen_q = random.between(33, 100);  // several tiles of columns, in turn in two buffers
    s.seqlen_k = random.between(33, 140);
    s.backward = s.lse = true;
    return s;
  };
  const auto check = [&](const CaseSpec& s, std::size_t shift = 0) {
    EXPECT_GT(expect_all_verified(s, random, shift), 0) << to_string(s);
  };
  CaseSpec s = spec(DType::bf16, 512, 512);
  s.num_heads = 2;
  s.window_left = random.between(0, 40);
  s.window_right = random.between(0, 20);
  s.nan_in_masked = true;
  check(s);

  s = spec(DType::fp16, 384, 384);
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  s.dropout = 0.3F;
  check(s);

  s = spec(DType::bf16, 320, 512);
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.bias_broadcast = {true, false, random.chance(0.5)};
  s.alibi = 1;
  s.dlse = true;
  check(s);

  s = spec(DType::fp16, 512, 256);
  s.softcap = 20;
  s.sinks = true;
  s.layout = random.pick({Layout::bhsd, Layout::sbhd});
  check(s, 1);

  s = spec(DType::bf16, 261, 290);
  s.layout = Layout::odd_strides;
  s.causal = Causal::top_left;
  s.huge_bias = s.bias = true;
  check(s);

  s = spec(DType::bf16, 512, 64);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  check(s);

  for (std::size_t wanted = 0; wanted < 3; ++wanted) {
    s = spec(DType::bf16, random.pick({288, 512}), random.pick({288, 512}));
    s.gradients = {};
    s.gradients[wanted] = true;
    check(s);
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuWideHeads,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

// Blocks of rows by how much LDS there is, and by how many there are for the chip's units: pairs of
// waves, and four for 16 rows.
TEST(WideHeads, GradientsByLdsAndUnits) {
  if (const std::string why = why_unusable("emulated:sm_90a"); !why.empty()) GTEST_SKIP() << why;
  Random random(9440);
  constexpr int64_t kManyBlocks = 3;  // an emulated chip has 4 units
  for (const auto& [chip, block_m, dim, heads] :
       {std::tuple<std::string, std::string, int64_t, int64_t>{"sm_90a", "64", 512, kManyBlocks},
        {"sm_90a", "32", 512, 1},
        {"sm_80", "64", 384, kManyBlocks},
        {"sm_80", "32", 512, 1},
        {"sm_86", "16", 512, 1}}) {
    CaseSpec s;
    s.dtype = DType::bf16;
    s.head_dim = s.head_dim_v = dim;
    s.num_heads = s.num_kv_heads = heads;
    s.seqlen_q = random.between(33, 70);
    s.seqlen_k = random.between(33, 70);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = s.backward = s.lse = true;
    Case c(s, random);
    const std::string device = "emulated:" + chip;
    EXPECT_TRUE(verified(c, "emulated.backward.sm80", {device})) << chip << ' ' << to_string(s);
    const Result<Plan> planned = plan(c.problem(), device);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_NE(planned->explain().find("block_m=" + block_m + " block_n=16"), std::string::npos)
        << planned->explain();
  }
}

// Forward, tiles of fewer rows where larger ones would leave half of the chip's 4 units idle.
TEST(WideHeads, TilesOfFewerRowsWhereThereAreFew) {
  if (const std::string why = why_unusable("emulated:sm_80"); !why.empty()) GTEST_SKIP() << why;
  Random random(9450);
  for (const auto& [block_m, heads] : {std::pair<int, int64_t>{32, 1}, {64, 3}}) {
    CaseSpec s;
    s.dtype = random.pick({DType::bf16, DType::fp16});
    s.head_dim = s.head_dim_v = random.pick({288, 512});
    s.num_heads = s.num_kv_heads = heads;
    s.seqlen_q = random.between(65, 128);
    s.seqlen_k = random.between(33, 140);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = s.lse = true;
    Case c(s, random);
    EXPECT_TRUE(verified(c, "emulated.prefill.sm80", {"emulated:sm_80"})) << to_string(s);
    AttentionOptions options = c.options;
    options.kernel = "emulated.prefill.sm80";
    const Result<Plan> planned = plan(c.problem(), "emulated:sm_80", options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->config().block_m, block_m) << planned->explain();
  }
}

// The kernel that serves, and what another one says.
TEST(WideHeads, AreServedByMatrixInstructionsWhereThereAreSome) {
  Random random(9430);
  CaseSpec image;  // a block of a VAE
  image.dtype = DType::bf16;
  image.head_dim = image.head_dim_v = 512;
  image.seqlen_q = image.seqlen_k = 1024;
  CaseSpec latent = image;
  latent.seqlen_q = 1;
  latent.num_heads = 128;
  latent.head_dim = 576;
  CaseSpec gradients = image;
  gradients.backward = gradients.lse = true;
  const Problem of_image = Case(image, random).problem(),
                of_latent = Case(latent, random).problem(),
                of_gradients = Case(gradients, random).problem();
  const auto chosen = [&](const Problem& problem, const std::string& chip) {
    return chosen_kernel(problem, "emulated:" + chip);
  };
  if (const std::string why = why_unusable("emulated:gfx1100"); !why.empty()) GTEST_SKIP() << why;
  for (const auto& [chip, target] : {std::pair<std::string, std::string>{"gfx1100", "gfx11"},
                                     {"gfx1201", "gfx12"},
                                     {"gfx942", "cdna3"},
                                     {"gfx950", "cdna4"},
                                     {"gfx908", "cdna1"},
                                     {"sm_80", "sm80"},
                                     {"sm_86", "sm80"}}) {
    EXPECT_EQ(chosen(of_image, chip), "emulated.prefill." + target) << chip;
    EXPECT_EQ(chosen(of_latent, chip), "emulated.decode." + target) << chip;
    const bool rdna = target.starts_with("gfx1");
    EXPECT_EQ(chosen(of_gradients, chip), "emulated.backward." + (rdna ? "portable" : target))
        << chip;
  }
  const Result<Plan> backward = plan(of_gradients, "emulated:gfx1100");
  ASSERT_TRUE(backward.ok()) << backward.status().message();
  EXPECT_EQ(backward->config().kernel, "emulated.backward.portable");
  EXPECT_NE(backward->explain().find("head_dim is 512: 64 KiB of LDS and 256 registers a lane hold "
                                     "no tiles of heads wider than 256"),
            std::string::npos)
      << backward->explain();
}

}  // namespace
}  // namespace fulmen::testing
