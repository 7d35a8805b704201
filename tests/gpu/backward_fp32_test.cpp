// Gradients of fp32 by parts, on every target.
#include "gpu/fp32_test.h"

namespace fulmen::testing {
namespace {

class GpuBackwardFp32 : public Fp32Test {
 protected:
  GpuBackwardFp32() : Fp32Test("backward_fp32", true) {}
};

TEST_P(GpuBackwardFp32, ShapesAndLayouts) {
  Random random(8700);
  CaseSpec s = spec_of(64, random.between(129, 200), random.between(65, 200));
  s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.dlse = random.chance(0.5);
  EXPECT_TRUE(check(s, random));
  for (const auto& [q, k] :
       {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {1, 1}, {17, 129}, {64, 32}}) {
    EXPECT_TRUE(check(spec_of(64, q, k), random));
  }
  s = spec_of(59, 70, 90);
  s.head_dim_v = 40;
  s.layout = Layout::odd_strides;
  EXPECT_TRUE(check(s, random));
  EXPECT_TRUE(check(spec_of(40, 33, 100), random, 1));  // at no multiple of 16 bytes
  // Not every chip has LDS for these.
  check(spec_of(128, 70, 100), random);
  check(spec_of(200, 40, 50), random);
}

// Each gradient alone, where the launches of the others are left out.
TEST_P(GpuBackwardFp32, EachGradientAlone) {
  Random random(8705);
  for (std::size_t one = 0; one < 3; ++one) {
    CaseSpec s = spec_of(64, 70, 90);
    s.gradients = {one == 0, one == 1, one == 2, false, false};
    EXPECT_TRUE(check(s, random));
  }
}

TEST_P(GpuBackwardFp32, Features) {
  Random random(8710);
  CaseSpec s = spec_of(64, random.between(65, 150), random.between(65, 150));
  s.batch = s.num_heads = 2;
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  s.dropout = 0.3F;
  EXPECT_TRUE(check(s, random));

  s = spec_of(40, 90, 150);
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  EXPECT_TRUE(check(s, random));

  s = spec_of(48, 70, 110);
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.keep = s.nan_in_masked = s.bias = true;
  s.alibi = 2;
  s.bias_dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  EXPECT_TRUE(check(s, random));

  s = spec_of(32, 100, 150);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  EXPECT_TRUE(check(s, random));

  s = spec_of(64, 70, 300);  // large scores
  s.q_size = 5;
  s.kv_size = 3;
  EXPECT_TRUE(check(s, random));
}

TEST_P(GpuBackwardFp32, HugeAndTinyNumbers) {
  Random random(8720);
  for (const float size : {1e15F, 1e-15F}) {
    CaseSpec s = spec_of(64, 40, 70);
    s.q_size = size;
    s.kv_size = 1 / size;
    EXPECT_TRUE(check(s, random));
  }
}

TEST_P(GpuBackwardFp32, RepeatsBitForBit) {
  Random random(8730);
  CaseSpec s = spec_of(64, 150, 150);
  s.causal = Causal::bottom_right;
  Case c(s, random);
  EXPECT_TRUE(check(c));
  const std::vector<float> first = c.output_values();
  EXPECT_TRUE(check(c));
  EXPECT_TRUE(same_bits(first, c.output_values()));
}

TEST_P(GpuBackwardFp32, QueriesWithoutKeysHaveNoGradient) {
  Random random(8740);
  expect_no_gradient_without_keys(spec_of(64, 60, 40), random);
}

TEST_P(GpuBackwardFp32, AnyFeatures) {
  constexpr int kCases = 3;
  Random random(own_stream(8750));
  for (int n = 0; n < kCases;) {
    CaseSpec s = limited(random_backward_spec(random));
    s.dtype = DType::fp32;
    if (check(s, random)) ++n;
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackwardFp32,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, GpuBackwardFp32, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
