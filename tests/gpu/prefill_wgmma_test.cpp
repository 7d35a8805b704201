// The forward pass by warpgroup products, on the one emulated chip that has them, and on the
// machine's GPU where it is a Hopper.
#include <algorithm>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuPrefillWgmma : public HopperTest {
 protected:
  GpuPrefillWgmma() : HopperTest("prefill_wgmma", false) {}
};

// One to several tiles of keys and of queries, the last ones partial; no query, and no key.
TEST_P(GpuPrefillWgmma, ShapesAndLayouts) {
  Random random(7900);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(dim == 128 ? DType::fp16 : DType::bf16, dim, random.between(129, 260),
                         random.between(257, 400), random);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{0, 5},
                             {5, 0},
                             {1, 1},
                             {130, 3},
                             {17, 129},
                             {64, 128},
                             {2, 700}}) {
    CaseSpec s = spec_of(DType::bf16, 64, q, k, random);
    s.num_heads = 2;
    s.lse = random.chance(0.7);
    check(s, random);
  }
  check(spec_of(DType::bf16, 64, 3, 4099, random), random);  // long rows have larger tiles
}

TEST_P(GpuPrefillWgmma, DropoutInBands) {
  Random random(7915);
  check(dropout_in_band(random.between(65, 140), 300, random), random);
}

TEST_P(GpuPrefillWgmma, Features) {
  Random random(7910);
  CaseSpec s = spec_of(DType::bf16, 128, random.between(65, 200), random.between(129, 300), random);
  s.batch = 2;
  s.num_heads = 2;
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  s.dropout = 0.3F;
  check(s, random);

  s = spec_of(DType::fp16, 40, 150, 190, random);  // partial dims, rows of odd lengths
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  check(s, random);

  s = spec_of(DType::bf16, 192, 70, 150, random);
  s.head_dim_v = 48;
  s.keep = true;
  s.nan_in_masked = true;
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.causal = Causal::bottom_right;
  check(s, random, 1);  // tensors at no multiple of 16 bytes

  // Tiles that some warpgroups attend and others do not; warpgroups without rows, and rows without
  // any key.
  s = spec_of(DType::bf16, 128, 260, 400, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.window_left = random.between(0, 40);
  s.nan_in_masked = true;
  check(s, random);
  s.seqlen_k = 90;
  s.causal = Causal::bottom_right;
  check(s, random);

  // The maximum is in a late tile: sums and outputs must be rescaled.
  s = spec_of(DType::fp16, 64, 70, 400, random);
  s.q_size = 5;
  s.kv_size = 3;
  check(s, random);
}

TEST_P(GpuPrefillWgmma, SequencesOfDifferentLengths) {
  Random random(7920);
  CaseSpec s = spec_of(DType::bf16, 128, 150, 290, random);
  s.batch = 3;
  s.num_heads = 2;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  check(s, random);

  for (const int64_t page_size : {16, 128}) {
    s = spec_of(DType::bf16, 64, 90, 290, random);
    s.batch = 2;
    s.page_size = page_size;
    s.used_k = true;
    s.window_left = page_size == 128 ? 100 : -1;
    check(s, random);
  }
}

TEST_P(GpuPrefillWgmma, AnyFeatures) {
  constexpr int kCases = 4;
  Random random(7930);
  for (int n = 0; n < kCases;) {
    const CaseSpec s = limited(random_spec(random));
    if (s.dtype == DType::fp32) continue;
    check(s, random);
    ++n;
  }
}

// It is chosen where queries, keys and dims suffice, and the TMA's kernel refuses.
TEST_P(GpuPrefillWgmma, IsChosenForWideRows) {
  Random random(7940);
  for (const int64_t dim : {32, 128}) {
    for (const int64_t seqlen : {64, 150}) {
      CaseSpec s = spec_of(DType::bf16, dim, seqlen, 150, random);
      s.used_k = s.keep = true;  // the TMA's kernel takes no mask where lengths may differ
      const Case c(s, random);
      const Result<Plan> planned = plan(c.problem(), device(), c.options);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->config().kernel == kernel(), dim > 32 && seqlen > 64)
          << planned->explain();
      EXPECT_NE(planned->explain().find(kernel()), std::string::npos) << planned->explain();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuPrefillWgmma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
