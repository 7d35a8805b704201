// The forward pass whose tiles the TMA loads, on the one emulated chip that has it, and on the
// machine's GPU where it is a Hopper.
#include <algorithm>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuPrefillTma : public HopperTest {
 protected:
  GpuPrefillTma() : HopperTest("prefill_tma", false) {}
};

// Dims of one to four panels, and parts of them; tiles of one to four warpgroups, the last ones
// partial.
TEST_P(GpuPrefillTma, ShapesAndLayouts) {
  Random random(8900);
  for (const int64_t dim : {16, 64, 80, 128, 192, 200, 224, 256}) {
    CaseSpec s = spec_of(dim % 128 == 0 ? DType::fp16 : DType::bf16, dim, random.between(129, 200),
                         random.between(150, 300), random);
    s.num_heads = random.between(1, 3);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  for (const auto& [q, k] :
       {std::pair<int64_t, int64_t>{1, 1}, {130, 3}, {17, 129}, {64, 128}, {2, 700}}) {
    CaseSpec s = spec_of(DType::bf16, 64, q, k, random);
    s.lse = random.chance(0.7);
    check(s, random);
  }
  CaseSpec wide = spec_of(DType::bf16, 96, 140, 150, random);
  wide.head_dim_v = 208;
  check(wide, random);
  // Long rows have tiles of other shapes.
  CaseSpec s = spec_of(DType::bf16, 128, 193, 2050, random);
  s.num_heads = 2;
  check(s, random);
}

// Static persistent scheduler, more work tiles than multiprocessors: workgroups take further tiles,
// with a band in pairs; the pairs are of one head where the number of heads is odd.
TEST_P(GpuPrefillTma, PersistentWorkgroups) {
  Random random(8910);
  for (const int64_t heads : {9, 8}) {
    CaseSpec s = spec_of(DType::bf16, 80, 260, random.between(120, 270), random);
    s.num_heads = heads;
    s.num_kv_heads = 1;
    check(s, random);
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    s.nan_in_masked = true;
    check(s, random);
  }
}

// Up to 64 dims: workgroups of 256 rows and of 64; under a mask, warpgroups swap ends from tile to
// tile.
TEST_P(GpuPrefillTma, ShortSequences) {
  Random random(8915);
  CaseSpec s = spec_of(DType::bf16, 64, 500, random.between(120, 270), random);
  s.num_heads = 9;
  check(s, random);
  s.causal = Causal::bottom_right;
  s.nan_in_masked = true;
  check(s, random);
  s.head_dim = s.head_dim_v = 32;
  s.num_heads = 6;
  s.seqlen_k = random.between(1025, 1100);
  check(s, random);
}

// The dynamic tile scheduler, in every order that tiles have; a tile is computed once.
TEST_P(GpuPrefillTma, DynamicTileScheduler) {
  Random random(8917);
  for (const int64_t dim : random.sample<int64_t>({64, 128, 256}, 1)) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(300, 450),
                         random.between(260, 500), random);
    s.num_heads = random.between(3, 5);
    for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
      s.causal = causal;
      s.nan_in_masked = causal != Causal::none;
      s.lse = random.chance(0.5);
      Case c(s, random);
      c.options.tuning = "persistent=2";
      EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
    }
  }
}

// The tiles of the tail wave have their keys split: five tiles for four multiprocessors.
TEST_P(GpuPrefillTma, LastRoundInSplits) {
  Random random(8918);
  for (const int64_t dim : {64, 80, 128}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(100, 190),
                         random.between(2700, 3100), random);
    s.num_heads = 5;
    s.lse = random.chance(0.7);
    s.sinks = random.chance(0.5);
    s.dropout = dim == 80 ? 0.2F : 0;
    Case c(s, random);
    c.options.kernel = kernel();
    c.options.tuning =
        "persistent=" + random.pick({std::string("0"), std::string("1"), std::string("2")});
    const Result<Plan> planned = plan(c.problem(), device(), c.options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_TRUE(!device().starts_with("emulated") || planned->config().num_splits > 1)
        << planned->explain();
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
  }
}

// Tiles that some warpgroups skip; rows and whole tiles without any key; keys that no query attends
// are NaN.
TEST_P(GpuPrefillTma, Bands) {
  Random random(8920);
  CaseSpec s = spec_of(DType::bf16, 64, 450, 500, random);
  s.causal = Causal::bottom_right;
  s.nan_in_masked = true;
  check(s, random);
  s.window_left = random.between(0, 90);
  check(s, random);
  s.seqlen_k = 90;
  s.window_left = -1;
  check(s, random);
  s.num_heads = 4;
  s.causal = Causal::top_left;
  check(s, random);
  check(dropout_in_band(random.between(65, 140), 300, random), random);
}

// Dropout's mask and a bias that is loaded ahead, of tiles of 64 to 176 keys, the last of them
// partial; a bias of three warpgroups is not ahead.
TEST_P(GpuPrefillTma, DropoutAndBiasByTiles) {
  struct Tiles {
    int64_t head_dim;
    const char* tuning;
  };
  Random random(8925);
  for (const Tiles& tiles : random.sample<Tiles>(
           {{64, "block_m=64,block_n=64,buffers=2,min_workgroups=3,ping_pong=0,persistent=1"},
            {64, "block_m=64,block_n=128,buffers=2,min_workgroups=2,ping_pong=0,persistent=0"},
            {64, "block_m=128,block_n=128,buffers=2,min_workgroups=1,ping_pong=1,persistent=1"},
            {64, "block_m=192,block_n=128,buffers=2,min_workgroups=1,ping_pong=1,persistent=1"},
            {128, "block_m=192,block_n=80,buffers=2,min_workgroups=1,ping_pong=1,persistent=1"},
            {64, "block_m=64,block_n=176,buffers=2,min_workgroups=2,ping_pong=0,persistent=0"},
            {32, "block_m=64,block_n=64,buffers=2,min_workgroups=3,ping_pong=0,persistent=1"}},
           2)) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), tiles.head_dim,
                         random.between(100, 200), random.between(200, 330), random);
    s.num_heads = 2;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = s.causal != Causal::none;
    for (const bool dropout : {true, false}) {
      s.dropout = dropout ? 0.3F : 0;
      s.bias = !dropout || random.chance(0.5);
      s.bias_dtype = random.pick({DType::fp32, s.dtype});
      Case c(s, random);
      c.options.tuning = tiles.tuning;
      EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s) << tiles.tuning;
    }
  }
}

TEST_P(GpuPrefillTma, Features) {
  Random random(8930);
  CaseSpec s = spec_of(DType::fp16, 40, 150, 190, random);
  s.head_dim_v = 72;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  check(s, random);
  s = spec_of(DType::bf16, 192, 70, 150, random);
  s.head_dim_v = 48;
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.dropout = 0.3F;
  s.causal = Causal::bottom_right;
  check(s, random);
  check(s, random, 1);  // tensors at no multiple of 16 bytes: prefill_wgmma's code
  // The maximum is in a late tile: sums and outputs must be rescaled.
  s = spec_of(DType::fp16, 64, 70, 400, random);
  s.q_size = 5;
  s.kv_size = 3;
  check(s, random);
}

TEST_P(GpuPrefillTma, AnyFeatures) {
  constexpr int kCases = 4;
  Random random(8940);
  for (int n = 0; n < kCases;) {
    const CaseSpec s = limited(random_spec(random));
    const Case c(s, random);
    const Problem problem = c.problem();
    const std::vector<std::string> kernels = kernels_for(problem, device());
    if (std::find(kernels.begin(), kernels.end(), kernel()) == kernels.end()) continue;
    check(s, random);
    ++n;
  }
}

// Why it refuses a problem, in explain's words.
TEST_P(GpuPrefillTma, SaysWhyNot) {
  Random random(8950);
  CaseSpec s = spec_of(DType::bf16, 59, 150, 150, random);
  expect_reason(s, "the TMA reads rows and strides of whole pieces of 16 bytes", random);
}

TEST_P(GpuPrefillTma, IsChosenForWideRowsAndSeveralTilesOfKeys) {
  Random random(8960);
  for (const int64_t dim : {32, 128}) {
    for (const int64_t seqlen_k : {64, 150}) {
      const Case c(spec_of(DType::bf16, dim, 150, seqlen_k, random), random);
      const Result<Plan> planned = plan(c.problem(), device(), c.options);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->config().kernel == kernel(), dim > 32 && seqlen_k > 64)
          << planned->explain();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuPrefillTma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
