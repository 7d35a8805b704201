// The forward pass of fp32 by parts, on every target: as exact as fp32 is, for every finite number,
// and infinities and NaN as in fp32.
#include <cmath>
#include <limits>

#include "gpu/fp32_test.h"

namespace fulmen::testing {
namespace {

class GpuPrefillFp32 : public Fp32Test {
 protected:
  GpuPrefillFp32() : Fp32Test("prefill_fp32", false) {}
};

TEST_P(GpuPrefillFp32, ShapesAndLayouts) {
  Random random(8600);
  for (const int64_t dim : {64, 128}) {
    CaseSpec s = spec_of(dim, random.between(129, 200), random.between(65, 200));
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    s.num_heads = 2;
    s.lse = random.chance(0.7);
    EXPECT_TRUE(check(s, random));
  }
  for (const auto& [q, k] :
       {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {1, 1}, {17, 129}, {64, 32}, {2, 700}}) {
    EXPECT_TRUE(check(spec_of(64, q, k), random));
  }
  CaseSpec s = spec_of(59, 70, 90);
  s.head_dim_v = 111;
  s.layout = Layout::odd_strides;
  EXPECT_TRUE(check(s, random));
  EXPECT_TRUE(check(spec_of(40, 33, 100), random, 1));  // at no multiple of 16 bytes
  check(spec_of(256, 40, 90), random);                  // not every chip has LDS for it
}

TEST_P(GpuPrefillFp32, Features) {
  Random random(8610);
  CaseSpec s = spec_of(64, random.between(65, 200), random.between(65, 200));
  s.batch = s.num_heads = 2;
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  s.dropout = 0.3F;
  EXPECT_TRUE(check(s, random));

  s = spec_of(40, 90, 190);
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  EXPECT_TRUE(check(s, random));

  s = spec_of(96, 70, 150);
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.keep = s.nan_in_masked = s.bias = true;
  s.alibi = 2;
  s.bias_dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  EXPECT_TRUE(check(s, random));

  s = spec_of(64, 140, 300);  // tiles of which the mask keeps all, some and none
  s.keep = s.nan_in_masked = true;
  s.keep_documents = 90;
  EXPECT_TRUE(check(s, random));

  s = spec_of(32, 100, 200);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  EXPECT_TRUE(check(s, random));
  for (const int64_t page_size : {16, 32}) {
    s = spec_of(64, 70, 150);
    s.batch = 2;
    s.page_size = page_size;
    s.used_k = true;
    EXPECT_TRUE(check(s, random));
  }
}

// The maximum comes late, and scores are large: what products by parts leave out shows.
TEST_P(GpuPrefillFp32, LargeScores) {
  Random random(8620);
  for (const int64_t dim : {64, 128}) {
    CaseSpec s = spec_of(dim, 70, 1000);
    s.q_size = 5;
    s.kv_size = 3;
    EXPECT_TRUE(check(s, random));
  }
}

// Parts of the largest numbers do not overflow, and those of the smallest are not lost where the
// other factor is large.
TEST_P(GpuPrefillFp32, HugeAndTinyNumbers) {
  Random random(8630);
  for (const float size : {1e30F, 1e-30F}) {
    CaseSpec s = spec_of(64, 40, 100);
    s.q_size = size;
    s.kv_size = 1 / size;
    EXPECT_TRUE(check(s, random));
  }
  // One key whose score is 0: out is its value.
  CaseSpec one = spec_of(64, 5, 1);
  one.q_size = 0;
  Case c(one, random);
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (int64_t d = 0; d < 64; ++d)
    Case::set(c.tensors.v, {0, 0, 0, d}, d % 2 == 0 ? kLargest : -std::ldexp(1.0F, -120));
  EXPECT_TRUE(check(c));
  EXPECT_NEAR(c.out_values()[0] / kLargest, 1, 1e-6);
  EXPECT_NEAR(std::ldexp(c.out_values()[1], 120), -1, 1e-6);
}

// As of fp32: an infinite key is ignored by queries whose score of it is -inf, and makes NaN of
// others; an infinite value makes infinities of its column; NaN stays in its row.
TEST_P(GpuPrefillFp32, InfinitiesAndNan) {
  Random random(8640);
  CaseSpec s = spec_of(64, 40, 100);
  s.num_heads = 2;
  for (const float infinity : {HUGE_VALF, -HUGE_VALF}) {
    Case in_key(s, random);
    Case::set(in_key.tensors.k, {0, 40, 1, 3}, infinity);
    EXPECT_TRUE(check(in_key));
    // Numbers without low parts: infinity times 0 is NaN.
    for (int64_t i = 0; i < s.seqlen_q; ++i)
      Case::set(in_key.tensors.q, {0, i, 1, 3}, i % 2 == 0 ? 1.0F : -2.0F);
    EXPECT_TRUE(check(in_key));

    Case in_query(s, random);
    Case::set(in_query.tensors.q, {0, 11, 1, 7}, infinity);
    EXPECT_TRUE(check(in_query));

    Case in_value(s, random);
    Case::set(in_value.tensors.v, {0, 33, 0, 5}, infinity);
    EXPECT_TRUE(check(in_value));
    EXPECT_EQ(in_value.out_values()[5], infinity);
  }
  Case nan(s, random);
  Case::set(nan.tensors.q, {0, 20, 0, 0}, NAN);
  EXPECT_TRUE(check(nan));
}

// As GpuKernels.MaskedFirstKeysOfWindows.
TEST_P(GpuPrefillFp32, MaskedFirstKeysOfWindows) {
  Random random(own_stream(8640));
  for (const int64_t dim : {64, 96}) {
    CaseSpec s = spec_of(dim, 100, 107);
    s.window_left = random.between(1, 40);
    s.keep = true;
    s.keep_broadcast = {false, true, true};
    s.keep_share = 0.2;
    s.nan_in_masked = true;
    EXPECT_TRUE(check(s, random));
  }
}

TEST_P(GpuPrefillFp32, AnyFeatures) {
  constexpr int kCases = 4;
  Random random(own_stream(8650));
  for (int n = 0; n < kCases;) {
    CaseSpec s = limited(random_spec(random));
    s.dtype = DType::fp32;
    if (check(s, random)) ++n;
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuPrefillFp32,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, GpuPrefillFp32, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
