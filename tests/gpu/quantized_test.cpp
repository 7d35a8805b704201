// Keys and values in 8 bits and fewer, read in place by GPU kernels. Each draw is a kernel of its
// own: formats and scales are in its configuration.
#include <algorithm>
#include <cmath>
#include <string>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuQuantized : public GpuTest {
 protected:
  // A few queries behind a cache, or a tile of them.
  static CaseSpec cache(Random& random) {
    CaseSpec s;
    s.dtype = random.pick({DType::fp16, DType::bf16, DType::bf16, DType::fp32});
    s.batch = 2;
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 4);
    s.head_dim = random.pick({int64_t{64}, int64_t{96}, int64_t{128}, int64_t{40}});
    s.head_dim_v = random.chance(0.7) ? s.head_dim : 64;
    s.seqlen_q = random.chance(0.7) ? random.between(1, 4) : random.between(20, 90);
    s.seqlen_k = random.between(1, 400);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::odd_strides});
    if (random.chance(0.5)) s.causal = Causal::bottom_right;
    draw_quantized(s, random);
    return s;
  }
};

// What matrix instructions take: int8 and fp8, whose scales are the keys' or the head's; a few
// queries, or tiles of them.
CaseSpec matrix_cache(Random& random, bool tiles) {
  CaseSpec s;
  s.dtype = random.pick({DType::fp16, DType::bf16, DType::bf16});
  s.batch = 2;
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 4);
  s.head_dim = s.head_dim_v = random.pick({int64_t{64}, int64_t{96}, int64_t{128}, int64_t{72}});
  s.seqlen_q = tiles ? random.between(40, 150) : random.between(1, 3);
  s.seqlen_k = tiles ? random.between(30, 280) : random.between(150, 600);
  if (tiles && random.chance(0.2)) s.dropout = 0.2F;
  s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
  if (random.chance(0.4)) s.window_left = random.between(20, 100);
  s.causal = random.pick({Causal::none, Causal::bottom_right});
  s.keep = random.chance(0.2);
  s.softcap = random.chance(0.2) ? 20 : 0;
  s.nan_in_masked = true;
  draw_quantized(s, random);
  const auto byte_format = [&](DType dtype) {
    return block_bytes(dtype) > 0 || dtype == s.dtype ? DType::int8 : dtype;
  };
  s.k_dtype = byte_format(s.k_dtype);
  if (s.v_dtype != s.dtype) s.v_dtype = byte_format(s.v_dtype);
  s.k_scale =
      random.pick({ScaleOf::none, ScaleOf::tensor, ScaleOf::batch_and_head, ScaleOf::token});
  if (s.dtype == DType::fp16 && s.v_scale == ScaleOf::token) s.v_scale = ScaleOf::head;
  // In fp16 their smallest numbers are subnormal, which some chips take for 0.
  for (DType* format : {&s.k_dtype, &s.v_dtype}) {
    const bool wide = *format == DType::fp8_e5m2 || *format == DType::fp8_e5m2fnuz;
    if (wide && s.dtype == DType::fp16) *format = DType::fp8_e4m3;
  }
  return s;
}

TEST_P(GpuQuantized, MatrixInstructions) {
  Random random(own_stream(9620));
  for (int n = 0; n < 8; ++n) {
    CaseSpec s = matrix_cache(random, n < 4);
    if (random.chance(0.4)) {
      s.used_k = true;
      s.page_size = random.pick({int64_t{32}, int64_t{64}, int64_t{7}});
    } else if (random.chance(0.4)) {
      s.packed_q = s.packed_k = true;
    }
    if (!drawn(4)) continue;
    Case c(s, random);
    int served = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.ends_with(".portable")) continue;
      ++served;
      EXPECT_TRUE(verified(c, kernel, {device()})) << to_string(s);
    }
    EXPECT_GT(served, 0) << to_string(s);
  }
}

TEST_P(GpuQuantized, AnyFormatsAndScales) {
  Random random(own_stream(9600));
  for (int n = 0; n < 4; ++n) {
    CaseSpec s = cache(random);
    if (random.chance(0.3)) s.window_left = random.between(0, 60);
    if (random.chance(0.3)) {
      s.keep = true;
      s.nan_in_masked = true;
    }
    if (random.chance(0.2)) s.softcap = 20;
    if (random.chance(0.2)) s.alibi = 2;
    expect_all_verified(s, random);
  }
}

class GpuOddScales : public GpuQuantized {};

// Scales that are infinite or NaN, of a token or of a head.
TEST_P(GpuOddScales, ThatAreNotFinite) {
  Random random(own_stream(9630));
  for (int n = 0; n < 3; ++n) {
    CaseSpec s;
    s.dtype = DType::bf16;
    s.num_heads = 4;
    s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 64;
    s.seqlen_q = random.pick({int64_t{4}, int64_t{40}});
    s.seqlen_k = 130;
    s.quantized = true;
    s.k_dtype = random.pick({DType::int8, DType::fp8_e4m3});
    s.v_dtype = DType::int8;
    s.k_scale = s.v_scale = random.pick({ScaleOf::token, ScaleOf::token, ScaleOf::head});
    const bool of_tokens = s.k_scale == ScaleOf::token;
    if (of_tokens) s.causal = Causal::top_left;
    if (!drawn(3)) continue;
    Case c(s, random);
    const float odd = random.pick({HUGE_VALF, -HUGE_VALF, NAN});
    const bool of_keys = random.chance(0.5);
    Tensor& scale = of_keys ? c.tensors.k_scale : c.tensors.v_scale;
    // Of one head a key that is attended: by all rows, as a value of a masked key may reach any row
    // where others attend it; of the other head one that none attends.
    Case::set(scale, {0, of_tokens && of_keys ? random.between(0, 1) : 0, 0, 0}, odd);
    if (of_tokens) Case::set(scale, {0, 129, 1, 0}, NAN);
    EXPECT_GT(expect_all_kernels_verified(c, {device()}), 0) << to_string(s);
    EXPECT_FALSE(std::isnan(c.output_values().back())) << to_string(s);
  }
}

// 0 times a NaN is NaN.
TEST_P(GpuOddScales, OfZeroBesideNan) {
  Random random(own_stream(9645));
  if (!drawn(3)) return;
  CaseSpec s;
  s.dtype = random.pick({DType::fp16, DType::bf16});
  s.num_heads = s.num_kv_heads = 2;
  s.head_dim = s.head_dim_v = 64;
  s.seqlen_q = random.pick({int64_t{2}, int64_t{70}});
  s.seqlen_k = random.between(65, 200);
  s.quantized = true;
  s.k_dtype = DType::fp8_e4m3;
  s.v_dtype = DType::int8;
  s.k_scale = s.v_scale = ScaleOf::head;
  Case c(s, random);
  const int64_t key = random.between(0, s.seqlen_k - 1);
  const auto& strides = c.tensors.k.strides;
  static_cast<unsigned char*>(c.tensors.k.data)[key * strides[1] + strides[2] + 5] = 0x7F;
  Case::set(c.tensors.k_scale, {0, 0, 1, 0}, 0.0F);
  EXPECT_GT(expect_all_kernels_verified(c, {device()}), 0) << to_string(s);
}

// A sequence without keys is 0, whatever the scales of what there is not.
TEST_P(GpuOddScales, OfNoKeys) {
  Random random(own_stream(9640));
  if (!drawn(3)) return;
  CaseSpec s;
  s.dtype = DType::bf16;
  s.batch = 2;
  s.num_heads = s.num_kv_heads = 2;
  s.head_dim = s.head_dim_v = 64;
  s.seqlen_q = random.pick({int64_t{1}, int64_t{4}, int64_t{70}});
  s.seqlen_k = random.pick({int64_t{40}, int64_t{90}, int64_t{600}});
  s.used_k = true;
  s.quantized = true;
  s.k_dtype = s.v_dtype = random.pick({DType::int8, DType::fp8_e4m3});
  s.k_scale = s.v_scale = ScaleOf::batch_and_head;
  Case c(s, random);
  static_cast<int*>(c.tensors.seqlens_k.data)[1] = 0;
  const float odd = random.pick({NAN, HUGE_VALF});
  for (Tensor* scale : {&c.tensors.k_scale, &c.tensors.v_scale}) {
    if (random.chance(0.7)) Case::set(*scale, {1, 0, 1, 0}, odd);
  }
  EXPECT_GT(expect_all_kernels_verified(c, {device()}), 0) << to_string(s);
}

TEST_P(GpuQuantized, PagesAndLengths) {
  Random random(own_stream(9610));
  for (int n = 0; n < 4; ++n) {
    CaseSpec s = cache(random);
    s.nan_in_masked = true;
    if (random.chance(0.6)) {
      s.used_k = true;
      s.page_size = random.pick({int64_t{16}, int64_t{64}, int64_t{7}});
    } else if (random.chance(0.5)) {
      s.used_k = s.leftpad_k = true;
    } else {
      s.packed_q = s.packed_k = true;
    }
    expect_all_verified(s, random);
  }
}

// Hopper's tiles: a launch before them writes numbers and scales of tokens, from rows, packed rows
// or pages. Scales below 0 and of 0 are the head's.
class GpuQuantizedTma : public HopperTest {
 protected:
  GpuQuantizedTma() : HopperTest("prefill_tma", false) {}
};

TEST_P(GpuQuantizedTma, NumbersInTheWorkspace) {
  Random random(own_stream(9650));
  for (int n = 0; n < 6; ++n) {
    CaseSpec s = matrix_cache(random, true);
    s.seqlen_q = random.between(65, 330);
    s.seqlen_k = random.between(65, 400);
    s.keep = false;
    s.layout = random.pick({Layout::bshd, Layout::bhsd});
    s.head_dim = random.pick({int64_t{64}, int64_t{72}, int64_t{128}, int64_t{192}});
    s.head_dim_v = random.chance(0.7) ? s.head_dim : 64;
    if (random.chance(0.3)) s.alibi = 1;
    if (random.chance(0.4)) {
      s.used_k = true;
      s.page_size = random.pick({int64_t{16}, int64_t{256}, int64_t{7}});
    } else if (random.chance(0.4)) {
      s.packed_q = true;
      (random.chance(0.5) ? s.packed_k : s.used_k) = true;
    }
    if (!drawn(3)) continue;
    Case c(s, random);
    if (s.k_scale == ScaleOf::batch_and_head || s.k_scale == ScaleOf::tensor)
      Case::set(c.tensors.k_scale, {0, 0, 0, 0}, random.pick({-0.02F, 0.0F, 1e-44F}));
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuQuantized, ::testing::ValuesIn(gpu_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(Devices, GpuOddScales, ::testing::ValuesIn(gpu_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, GpuOddScales, ::testing::ValuesIn(hopper_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(On, GpuQuantizedTma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
