// Lengths 0 and 1, rows without keys, infinite and large values, on every kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr std::array<DType, 3> kDTypes{DType::fp32, DType::fp16, DType::bf16};

CaseSpec small_spec(DType dtype) {
  CaseSpec spec;
  spec.dtype = dtype;
  spec.batch = 2;
  spec.seqlen_q = 37;
  spec.seqlen_k = 70;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 32;
  spec.head_dim_v = 32;
  return spec;
}

TEST(Edges, LengthsOfZeroAndOne) {
  Random random(200);
  for (const DType dtype : kDTypes) {
    for (const int64_t seqlen_q : {0, 1, 2}) {
      for (const int64_t seqlen_k : {0, 1, 2}) {
        for (const bool sinks : {false, true}) {
          CaseSpec spec = small_spec(dtype);
          spec.seqlen_q = seqlen_q;
          spec.seqlen_k = seqlen_k;
          spec.sinks = sinks;
          Case c(spec, random);
          EXPECT_GT(expect_all_kernels_verified(c), 0);
        }
      }
    }
  }
}

TEST(Edges, BatchOfZero) {
  Random random(201);
  CaseSpec spec = small_spec(DType::fp32);
  spec.batch = 0;
  Case c(spec, random);
  EXPECT_GT(expect_all_kernels_verified(c), 0);
}

TEST(Edges, NoKeysWriteZerosAndMinusInfinity) {
  Random random(202);
  CaseSpec spec = small_spec(DType::bf16);
  spec.seqlen_k = 0;
  Case c(spec, random);
  for (const std::string& kernel : kernels_for(c.problem())) {
    ASSERT_TRUE(run_kernel(c, kernel).ok());
    for (const float value : c.out_values()) ASSERT_EQ(value, 0) << kernel;
    for (const float value : c.lse_values()) ASSERT_EQ(value, -HUGE_VALF) << kernel;
  }
}

// More than kernels expect caches to keep, so that they may write past them.
TEST(Edges, ManyShortSequences) {
  Random random(210);
  for (const DType dtype : kDTypes) {
    CaseSpec spec = small_spec(dtype);
    spec.batch = dtype == DType::fp32 ? 64 : 128;
    spec.seqlen_q = 64;
    spec.seqlen_k = 16;
    spec.num_heads = spec.num_kv_heads = 8;
    spec.head_dim = spec.head_dim_v = 64;
    spec.layout = Layout::bshd;
    Case c(spec, random);
    EXPECT_GT(c.problem().bytes(), 16e6);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

TEST(Edges, HeadDimsOfOneToTwenty) {
  Random random(203);
  for (int64_t dim = 1; dim <= 20; ++dim) {
    CaseSpec spec = small_spec(random.pick({DType::fp32, DType::fp16, DType::bf16}));
    spec.head_dim = dim;
    spec.head_dim_v = random.chance(0.5) ? dim : 21 - dim;
    spec.layout = random.pick({Layout::bshd, Layout::odd_strides});
    Case c(spec, random);
    expect_all_kernels_verified(c);
  }
}

TEST(Edges, RowsWithoutAnyKey) {
  Random random(204);
  for (const DType dtype : kDTypes) {
    for (const bool sinks : {false, true}) {
      CaseSpec spec = small_spec(dtype);
      spec.keep = true;
      spec.sinks = sinks;
      spec.nan_in_masked = true;
      Case c(spec, random);
      auto* keep = static_cast<uint8_t*>(c.tensors.keep_mask.data);
      for (int64_t row = 0; row < 2 * 4 * 37; row += 3)
        std::fill(keep + row * 70, keep + (row + 1) * 70, uint8_t{0});
      expect_all_kernels_verified(c);
    }
    // More queries than keys: the causal diagonal leaves the first rows empty, whole tiles of them.
    CaseSpec spec = small_spec(dtype);
    spec.seqlen_q = 300;
    spec.causal = Causal::bottom_right;
    Case c(spec, random);
    expect_all_kernels_verified(c);
    // A window that ends before the first key.
    spec.seqlen_q = 20;
    spec.seqlen_k = 200;
    spec.causal = Causal::top_left;
    spec.window_left = 3;
    Case narrow(spec, random);
    expect_all_kernels_verified(narrow);
  }
}

// With keys or without, masked or attended.
TEST(Edges, SinksOfInfinityAndNan) {
  Random random(211);
  for (const float sink : {HUGE_VALF, std::nanf(""), -HUGE_VALF, 3e38F, -3e38F, 2e38F, -2e38F}) {
    for (const int64_t seqlen_k : {0, 70}) {
      CaseSpec spec = small_spec(DType::fp32);
      spec.seqlen_q = 90;
      spec.seqlen_k = seqlen_k;
      spec.causal = Causal::bottom_right;
      spec.sinks = true;
      Case c(spec, random);
      static_cast<float*>(c.tensors.sinks.data)[1] = sink;
      EXPECT_GT(expect_all_kernels_verified(c), 0) << sink << ", keys " << seqlen_k;
    }
  }
}

TEST(Edges, BiasOfMinusInfinity) {
  Random random(205);
  for (const DType bias_dtype : kDTypes) {
    for (const DType dtype : kDTypes) {
      CaseSpec spec = small_spec(dtype);
      spec.bias = true;
      spec.bias_dtype = bias_dtype;
      Case c(spec, random);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t i = 0; i < 37; ++i) {
            // Row 5: all keys; row 6: the whole first half, so that a first tile is empty and a
            // later one is not.
            for (int64_t j = 0; j < 70; ++j) {
              if (i == 5 || (i == 6 && j < 35) || random.chance(0.2))
                Case::set(c.tensors.bias, {b, h, i, j}, -HUGE_VALF);
            }
          }
        }
      }
      expect_all_kernels_verified(c);
    }
  }
}

TEST(Edges, InfiniteKeysAndQueries) {
  Random random(206);
  for (const DType dtype : kDTypes) {
    for (const float infinity : {HUGE_VALF, -HUGE_VALF}) {
      // Scores of this key are +inf or -inf by the sign of each query's element: NaN rows and rows
      // that ignore the key.
      Case in_key(small_spec(dtype), random);
      Case::set(in_key.tensors.k, {1, 40, 1, 3}, infinity);
      expect_all_kernels_verified(in_key);
      // All scores of one row are infinite, of both signs.
      Case in_query(small_spec(dtype), random);
      Case::set(in_query.tensors.q, {0, 11, 2, 7}, infinity);
      expect_all_kernels_verified(in_query);
    }
  }
}

TEST(Edges, NanStaysInItsRow) {
  Random random(207);
  for (const DType dtype : kDTypes) {
    Case c(small_spec(dtype), random);
    Case::set(c.tensors.q, {1, 20, 3, 0}, NAN);
    expect_all_kernels_verified(c);
  }
}

// Values that no row attends may be NaN where a row has a NaN of its own, too, whose probabilities
// of masked keys are NaN.
TEST(Edges, NanInARowAndInMaskedValues) {
  Random random(3011);
  SCOPED_TRACE(test_seed());
  for (const DType dtype : kDTypes) {
    for (const int64_t queries : {1, 2, 5, 16, 40}) {
      CaseSpec spec = small_spec(dtype);
      spec.seqlen_q = queries;
      spec.seqlen_k = 150;
      spec.num_heads = 6;
      spec.keep = true;
      Case c(spec, random);
      c.mask_key(7);
      c.mask_key(70);
      Case::set(c.tensors.v, {1, 7, 1, 4}, NAN);
      Case::set(c.tensors.v, {1, 70, 1, 5}, HUGE_VALF);
      Case::set(c.tensors.q, {1, queries / 2, 4, 3}, NAN);
      expect_all_kernels_verified(c);
    }
  }
}

TEST(Edges, LargeInputs) {
  Random random(208);
  for (const DType dtype : kDTypes) {
    for (const bool causal : {false, true}) {
      for (const float softcap : {0.0F, 20.0F}) {
        CaseSpec spec = small_spec(dtype);
        spec.q_size = 5;
        spec.kv_size = 3;
        spec.head_dim = spec.head_dim_v = 64;
        spec.seqlen_q = spec.seqlen_k = 150;
        spec.causal = causal ? Causal::bottom_right : Causal::none;
        spec.softcap = softcap;
        Case c(spec, random);
        expect_all_kernels_verified(c);
      }
    }
  }
}

TEST(Edges, ScoresThatGrowAndFallAlongTheKeys) {
  Random random(209);
  for (const DType dtype : kDTypes) {
    for (const float slope : {1.0F, -1.0F}) {
      CaseSpec spec = small_spec(dtype);
      spec.seqlen_k = 400;
      spec.bias = true;  // the running maximum moves in every tile, or only in the first
      spec.bias_broadcast = {true, true, true};
      Case c(spec, random);
      for (int64_t j = 0; j < 400; ++j)
        Case::set(c.tensors.bias, {0, 0, 0, j}, slope * static_cast<float>(j));
      expect_all_kernels_verified(c);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
