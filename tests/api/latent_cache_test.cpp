// append_kv to a cache whose values are the first dims of its keys, and to caches that share bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "fulmen/fulmen.h"
#include "runtime/float_formats.h"
#include "runtime/shared_bytes.h"
#include "runtime/tensor_checks.h"
#include "support/random.h"

namespace fulmen {
namespace {

using testing::Random;

constexpr int64_t kBatch = 2, kRows = 8, kNew = 2, kDim = 576, kDimV = 512, kHeads = 2;
constexpr uint8_t kBefore = 0x5A;

// The first dims of x, the same memory.
Tensor first_dims(Tensor x, int64_t dims) {
  x.shape[3] = dims;
  return x;
}

enum class Scales { none, of_head, of_token };

struct Latent {
  std::vector<uint8_t> cache;
  std::vector<float> rows, scales;
  std::vector<int> used{5, 0};
  KvCacheTensors t;

  Latent(DType dtype, Scales kind, Random& random)
      : cache(static_cast<std::size_t>(kBatch * kRows * kHeads * row_elements(dtype, kDim) *
                                       size_of(dtype)),
              kBefore) {
    for (int64_t n = 0; n < kBatch * kNew * kHeads * kDim; ++n) rows.push_back(random.normal());
    t.k_cache = Tensor::bshd(cache.data(), dtype, kBatch, kRows, kHeads, kDim);
    t.v_cache = first_dims(t.k_cache, kDimV);
    t.seqlens_k = Tensor::vector(used.data(), DType::int32, kBatch);
    t.k_new = Tensor::bshd(rows.data(), DType::fp32, kBatch, kNew, kHeads, kDim);
    t.v_new = first_dims(t.k_new, kDimV);
    if (kind == Scales::none) return;
    scales.assign(kind == Scales::of_token ? kBatch * kRows * kHeads : kHeads, 0.05F);
    t.k_scale = t.v_scale =
        kind == Scales::of_token
            ? Tensor::bshd(scales.data(), DType::fp32, kBatch, kRows, kHeads, 1)
            : Tensor{scales.data(), DType::fp32, {1, 1, kHeads, 1}, {0, 0, 1, 1}};
  }
};

// Numbers that the cache has, or those of quantize_kv, are compared with the rows themselves.
TEST(LatentCache, RowsAreWrittenOnce) {
  struct Case {
    DType dtype;
    Scales scales;
    double error;  // of a number of size 1, at most
  };
  for (const auto& [dtype, kind, error] : {Case{DType::fp32, Scales::none, 0},
                                           {DType::int8, Scales::of_token, 0.02},
                                           {DType::int8, Scales::of_head, 0.026},
                                           {DType::fp8_e4m3, Scales::of_token, 0.0626},
                                           {DType::q8_0, Scales::none, 0.02}}) {
    Random random(483);
    Latent c(dtype, kind, random);
    const Status status = append_kv(c.t, {}, "cpu");
    ASSERT_TRUE(status.ok()) << to_string(dtype) << ": " << status.message();
    std::vector<float> read(static_cast<std::size_t>(kBatch * kRows * kHeads * kDim));
    const Tensor numbers = Tensor::bshd(read.data(), DType::fp32, kBatch, kRows, kHeads, kDim);
    if (dtype == DType::fp32) {
      std::copy_n(static_cast<const float*>(c.t.k_cache.data), read.size(), read.data());
    } else {
      const Status back = dequantize_kv(c.t.k_cache, c.t.k_scale, numbers);
      ASSERT_TRUE(back.ok()) << back.message();
    }
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < kNew; ++i) {
        const int64_t row = b * kRows + c.used[static_cast<std::size_t>(b)] + i;
        for (int64_t n = 0; n < kHeads * kDim; ++n) {
          const auto want = static_cast<double>(
              c.rows[static_cast<std::size_t>((b * kNew + i) * kHeads * kDim + n)]);
          ASSERT_NEAR(static_cast<double>(read[static_cast<std::size_t>(row * kHeads * kDim + n)]),
                      want, error * std::max(1.0, std::fabs(want)))
              << to_string(dtype) << " row " << row << " element " << n;
        }
      }
    }
    const std::size_t row_bytes = c.cache.size() / (kBatch * kRows);
    EXPECT_EQ(
        std::count(c.cache.begin(), c.cache.begin() + 5 * static_cast<int>(row_bytes), kBefore),
        5 * static_cast<int>(row_bytes));
  }
}

TEST(LatentCache, RefusesWhatValuesWouldOverwrite) {
  const auto refused = [](DType dtype, Scales kind, const auto& bend, const std::string& words) {
    Random random(484);
    Latent c(dtype, kind, random);
    bend(c);
    const std::vector<float> scales = c.scales;
    const Status status = append_kv(c.t, {}, "cpu");
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(std::count(c.cache.begin(), c.cache.end(), kBefore),
              static_cast<std::ptrdiff_t>(c.cache.size()));
    EXPECT_EQ(c.scales, scales);
  };
  std::vector<float> other(static_cast<std::size_t>(kBatch * kNew * kHeads * kDim));
  std::vector<float> angles(16, 1.0F);
  refused(
      DType::fp32, Scales::none, [&](Latent& c) { c.t.v_new.data = other.data(); },
      "the first dims of k_new are needed");
  refused(
      DType::fp32, Scales::none, [&](Latent& c) { c.t.v_new.strides[1] = kDim; },
      "the first dims of k_new are needed");
  refused(
      DType::fp32, Scales::none,
      [&](Latent& c) {
        c.t.rotary_cos = c.t.rotary_sin = Tensor::matrix(angles.data(), DType::fp32, 16, 1);
      },
      "rotary_cos is given: v_cache is the first dims of k_cache");
  refused(
      DType::int8, Scales::of_token, [&](Latent& c) { c.t.v_scale.data = other.data(); },
      "so they have one scale");
  refused(
      DType::int8, Scales::of_head, [](Latent& c) { c.t.v_scale = {}; }, "so they have one scale");
  // Elsewhere in k's rows, by other strides, or as another format.
  const auto moved = [](int64_t elements) {
    return [=](Latent& c) {
      c.t.v_cache.data =
          static_cast<char*>(c.t.v_cache.data) + elements * size_of(c.t.k_cache.dtype);
    };
  };
  refused(DType::fp32, Scales::none, moved(64), "v_cache at ");
  refused(DType::int8, Scales::of_token, moved(64), "v_cache at ");
  refused(DType::int8, Scales::of_token, moved(kHeads * kDim), "v_cache at ");
  refused(
      DType::fp32, Scales::none,
      [](Latent& c) {
        c.t.v_cache = Tensor::bshd(c.cache.data(), DType::fp32, kBatch, kRows, kHeads, kDimV);
      },
      "v_cache at ");
  refused(
      DType::int8, Scales::of_token, [](Latent& c) { c.t.v_cache.dtype = DType::fp8_e4m3; },
      "v_cache at ");
  refused(
      DType::int8, Scales::of_token,
      [&](Latent& c) {  // caches apart, one scale
        c.t.v_cache.data = other.data();
        c.t.v_new.data = c.rows.data() + 1;
      },
      "v_scale at ");
}

// Caches in each other's gaps, as vLLM and others keep them.
TEST(SharedBytes, GapsAreFree) {
  const auto share = [](const Tensor& a, const Tensor& b) {
    return share_bytes(a, spec_of(a), b, spec_of(b));
  };
  std::vector<uint8_t> memory(1 << 16);
  const auto view = [&](int64_t at, DType dtype, const Problem::Shape& shape,
                        const Problem::Shape& strides) {
    return Tensor{memory.data() + at, dtype, shape, strides};
  };
  using enum DType;
  // [pages, 2, 16, heads, dim], [pages, 16, heads, 2, dim] and K beside V in a head's row.
  EXPECT_FALSE(share(view(0, bf16, {9, 16, 2, 8}, {512, 16, 8, 1}),
                     view(512, bf16, {9, 16, 2, 8}, {512, 16, 8, 1})));
  EXPECT_FALSE(share(view(0, int8, {9, 16, 2, 8}, {512, 32, 16, 1}),
                     view(8, int8, {9, 16, 2, 8}, {512, 32, 16, 1})));
  EXPECT_TRUE(share(view(0, int8, {9, 16, 2, 9}, {512, 32, 16, 1}),
                    view(8, int8, {9, 16, 2, 8}, {512, 32, 16, 1})));
  // A scale behind a head's codes, and all scales behind a page's codes.
  EXPECT_FALSE(share(view(0, int8, {4, 16, 2, 12}, {512, 32, 16, 1}),
                     view(12, fp32, {4, 16, 2, 1}, {128, 8, 4, 1})));
  EXPECT_TRUE(share(view(0, int8, {4, 16, 2, 13}, {512, 32, 16, 1}),
                    view(12, fp32, {4, 16, 2, 1}, {128, 8, 4, 1})));
  EXPECT_FALSE(share(view(0, int8, {4, 16, 2, 8}, {512, 16, 8, 1}),
                     view(256, fp32, {4, 16, 2, 1}, {128, 2, 1, 1})));
}

// One memory of pages for both, of which the block table has K's and V's: transformers' cache.
TEST(SharedBytes, PagesOfOtherNumbersAreFree) {
  std::vector<float> memory(1 << 10);
  const Problem::Shape shape{5, 2, 3, 8}, strides{48, 24, 8, 1};
  const Tensor k{memory.data(), DType::fp32, shape, strides};
  for (const auto& [shift, without, with] : {std::tuple{48, true, false},
                                             {96, true, false},
                                             {0, true, true},
                                             {24, true, true},
                                             {72, true, true},
                                             {240, false, false}}) {
    const Tensor v{memory.data() + shift, DType::fp32, shape, strides};
    EXPECT_EQ(share_bytes(k, spec_of(k), v, spec_of(v)), without) << shift;
    EXPECT_EQ(share_bytes(k, spec_of(k), v, spec_of(v), true), with) << shift;
  }
}

TEST(SharedBytes, AgreesWithASetOfBytes) {
  Random random(485);
  std::vector<uint8_t> memory(1 << 14);
  int shared = 0;
  for (int n = 0; n < 3000; ++n) {
    const auto draw = [&] {
      const DType dtype = random.between(0, 1) == 0 ? DType::int8 : DType::fp16;
      Tensor t{nullptr, dtype, {}, {}};
      int64_t stride = t.shape[3] = random.between(1, 6);
      t.strides[3] = 1;
      for (const std::size_t d : {2U, 1U, 0U}) {
        t.shape[d] = random.between(1, 4);
        t.strides[d] = stride += random.between(0, 5);
        stride *= t.shape[d];
      }
      t.data = memory.data() + 2 * random.between(0, 300);
      return t;
    };
    const Tensor a = draw();
    Tensor b = draw();
    if (random.between(0, 1) == 0) b.strides = a.strides;
    const auto bytes = [&](const Tensor& t) {
      std::set<int64_t> all;
      for (int64_t i = 0; i < t.shape[0]; ++i)
        for (int64_t j = 0; j < t.shape[1]; ++j)
          for (int64_t k = 0; k < t.shape[2]; ++k)
            for (int64_t d = 0; d < t.shape[3] * size_of(t.dtype); ++d)
              all.insert(static_cast<uint8_t*>(t.data) - memory.data() + d +
                         (i * t.strides[0] + j * t.strides[1] + k * t.strides[2]) *
                             size_of(t.dtype));
      return all;
    };
    const std::set<int64_t> of_a = bytes(a), of_b = bytes(b);
    const bool right =
        std::any_of(of_a.begin(), of_a.end(), [&](int64_t at) { return of_b.count(at) > 0; });
    shared += right ? 1 : 0;
    ASSERT_EQ(share_bytes(a, spec_of(a), b, spec_of(b)), right) << "case " << n;
  }
  EXPECT_GT(shared, 300);
  EXPECT_LT(shared, 2700);
}

}  // namespace
}  // namespace fulmen
