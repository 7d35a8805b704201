// Every kernel over keys and values of every format is right by the tolerance rule, or refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr DType kFormats[] = {
    DType::int8, DType::fp8_e4m3, DType::fp8_e5m2, DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz,
    DType::q8_0, DType::q4_0,     DType::q4_1,     DType::q5_0,         DType::q5_1};

void expect_decode_verified(Case& c) {
  int decoded = 0;
  reference::Expected expected;
  for (const std::string& kernel : kernels_for(c.problem())) {
    if (!kernel.starts_with("cpu.decode.")) continue;
    EXPECT_TRUE(verified(c, kernel, {}, &expected));
    ++decoded;
  }
  EXPECT_GE(decoded, 1);
}

TEST(QuantizedKernels, CasesOfAnyFeatures) {
  for (int n = 0; n < 40; ++n) {
    Random random(4800 + static_cast<uint64_t>(n));
    CaseSpec spec = random_spec(random);
    spec.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::odd_strides});
    if (random.chance(0.15)) spec.dropout = random.pick({0.1F, 0.5F});
    if (random.chance(0.5)) spec.seqlen_q = random.between(1, 4);
    draw_quantized(spec, random);
    if (random.chance(0.4)) draw_variable_lengths(spec, random);
    Case c(spec, random);
    if (random.chance(0.2)) c.options.mask_mod = "k % 5 != 2 | q > k";
    if (random.chance(0.2)) c.options.score_mod = "score * 0.5 + float(h - k % 3)";
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

// Decode's three ways (a few rows of a KV head, many rows, one head shared by all) and prefill, on
// each format.
TEST(QuantizedKernels, EachFormatInDecodeAndPrefill) {
  struct Shape {
    int64_t seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim;
  };
  for (const DType format : kFormats) {
    for (const Shape& s :
         {Shape{1, 700, 4, 4, 64}, {1, 300, 8, 2, 128}, {2, 200, 20, 1, 96}, {70, 130, 2, 1, 64}}) {
      Random random(4900 + static_cast<uint64_t>(format));
      CaseSpec spec;
      spec.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
      spec.seqlen_q = s.seqlen_q;
      spec.seqlen_k = s.seqlen_k;
      spec.num_heads = s.num_heads;
      spec.num_kv_heads = s.num_kv_heads;
      spec.head_dim = spec.head_dim_v = s.head_dim;
      spec.causal = Causal::bottom_right;
      spec.quantized = true;
      spec.k_dtype = spec.v_dtype = format;
      if (block_bytes(format) == 0) spec.k_scale = spec.v_scale = ScaleOf::token;
      Case c(spec, random);
      const std::vector<std::string> kernels = kernels_for(c.problem());
      const bool decodes = std::any_of(kernels.begin(), kernels.end(), [](const std::string& name) {
        return name.starts_with("cpu.decode.");
      });
      EXPECT_EQ(decodes, s.seqlen_q < 70);
      EXPECT_GE(expect_all_kernels_verified(c), 3);
    }
  }
}

// Decode of few rows multiplies codes and leaves the scales to the products (cpu/decode/stored.h);
// where one is 0, tiny, huge or negative, or the queries are huge, the numbers themselves.
TEST(QuantizedKernels, DecodeOfFewRows) {
  for (int n = 0; n < 30; ++n) {
    Random random(4960 + static_cast<uint64_t>(n));
    CaseSpec spec = random_spec(random);
    spec.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    spec.num_kv_heads = random.between(1, 6);
    spec.seqlen_q = random.between(1, 4);
    spec.num_heads = spec.num_kv_heads * random.between(1, 4 / spec.seqlen_q);
    if (random.chance(0.3)) spec.seqlen_q = 1, spec.num_heads = spec.num_kv_heads;
    spec.seqlen_k = random.between(1, 600);
    spec.head_dim = 32 * random.between(1, 8);
    spec.head_dim_v = random.chance(0.5) ? spec.head_dim : 32 * random.between(1, 8);
    draw_quantized(spec, random);
    if (random.chance(0.4)) draw_variable_lengths(spec, random);
    if (spec.dtype == DType::fp32 && random.chance(0.2)) {
      spec.q_size = 0x1p34F;
      spec.scale = 0x1p-37F;
    }
    Case c(spec, random);
    for (const Tensor& scale : {c.tensors.k_scale, c.tensors.v_scale}) {
      if (scale.data == nullptr || random.chance(0.5)) continue;
      for (int i = 0; i < 3; ++i) {
        const std::array<int64_t, 4> index{
            random.between(0, scale.shape[0] - 1), random.between(0, scale.shape[1] - 1),
            random.between(0, scale.shape[2] - 1), random.between(0, scale.shape[3] - 1)};
        const float usual = Case::get(scale, index);
        Case::set(scale, index, random.pick({0.0F, -usual, 0x1p-60F * usual, -0x1p-41F}));
      }
    }
    expect_decode_verified(c);
  }
}

// fp32 and bf16 numbers may be so large that products with them are infinite before their scale
// makes them small, or only after it makes them infinite.
TEST(QuantizedKernels, DecodeOfHugeNumbersWithScales) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const ScaleOf share : {ScaleOf::none, ScaleOf::head, ScaleOf::token, ScaleOf::channel}) {
      Random random(4970);
      CaseSpec spec;
      spec.dtype = dtype;
      spec.seqlen_q = 1;
      spec.seqlen_k = 100;
      spec.num_kv_heads = 2;
      spec.num_heads = random.chance(0.5) ? 2 : 4;
      spec.head_dim = spec.head_dim_v = 64;
      spec.quantized = true;
      spec.k_dtype = spec.v_dtype = dtype;
      spec.k_scale = share;
      spec.v_scale = share == ScaleOf::channel ? ScaleOf::none : share;
      spec.q_scale = share == ScaleOf::none;
      spec.q_size = 0x1p27F;
      spec.kv_size = 0x1p100F;
      spec.scale = 0x1p-95F;
      Case c(spec, random);
      for (const Tensor& scale : {c.tensors.k_scale, c.tensors.v_scale, c.tensors.q_scale}) {
        if (scale.data == nullptr) continue;
        for (int64_t a = 0; a < scale.shape[0]; ++a)
          for (int64_t b = 0; b < scale.shape[1]; ++b)
            for (int64_t h = 0; h < scale.shape[2]; ++h)
              for (int64_t d = 0; d < scale.shape[3]; ++d)
                Case::set(scale, {a, b, h, d}, 0x1p-35F * Case::get(scale, {a, b, h, d}));
      }
      expect_decode_verified(c);
    }
  }
}

// NaN in values that a mask leaves out reaches nothing, whichever way the mask is told.
TEST(QuantizedKernels, WhatNoQueryAttendsIsNotRead) {
  constexpr int64_t kKept = 100, kKeys = 150;
  for (const int kind : {0, 1, 2, 3}) {
    const bool by_function = kind % 2 == 1;
    const int64_t queries = kind < 2 ? 70 : 2;  // prefill's and decode's
    Random random(4950);
    CaseSpec spec;
    spec.seqlen_q = queries;
    spec.seqlen_k = kKeys;
    spec.num_heads = spec.num_kv_heads = 2;
    spec.head_dim = spec.head_dim_v = 32;
    spec.keep = !by_function;
    spec.quantized = true;
    spec.k_dtype = spec.v_dtype = DType::fp8_e4m3;
    Case c(spec, random);
    if (by_function) c.options.mask_mod = "k < 100";
    const Tensor &v = c.tensors.v, &keep = c.tensors.keep_mask;
    for (int64_t k = kKept; k < kKeys; ++k) {
      for (int64_t h = 0; h < 2; ++h) {
        auto* row = static_cast<uint8_t*>(v.data) + k * v.strides[1] + h * v.strides[2];
        std::fill_n(row, 32, uint8_t{0x7F});
        for (int64_t q = 0; q < queries && !by_function; ++q) {
          static_cast<uint8_t*>(
              keep.data)[h * keep.strides[1] + q * keep.strides[2] + k * keep.strides[3]] = 0;
        }
      }
    }
    EXPECT_GE(expect_all_kernels_verified(c), 2);
    for (const std::string& kernel : kernels_for(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      for (const float x : c.out_values()) ASSERT_TRUE(std::isfinite(x)) << kernel;
    }
  }
}

TEST(QuantizedKernels, OthersRefuseInASentence) {
  Random random(4950);
  CaseSpec spec;
  spec.dtype = DType::fp32;
  spec.seqlen_q = spec.seqlen_k = 64;
  spec.head_dim = spec.head_dim_v = 32;
  spec.quantized = true;
  const Case c(spec, random);
  const Result<std::vector<Candidate>> all = candidates(c.problem(), "cpu");
  ASSERT_TRUE(all.ok());
  int refused = 0;
  for (const Candidate& one : all.value()) {
    if (one.support.yes) continue;
    if (one.support.reason == "it reads k and v of q's dtype alone, without scales") ++refused;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace fulmen::testing
