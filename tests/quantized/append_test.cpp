// append_kv into a quantized cache stores what quantize_kv makes of the rows that it would append
// to a cache of the new rows' dtype, and nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

constexpr int64_t kBatch = 2, kNew = 3, kHeads = 2, kDim = 64, kPositions = 16, kHalf = 8;
constexpr uint8_t kBefore = 0x5A;

enum class Scales { none, of_tensor, of_token };

// A cache of one dtype with its scales, padded or in pages of 4 rows.
struct Cache {
  DType dtype;
  std::vector<uint8_t> k, v;
  std::vector<float> k_scale, v_scale;
  KvCacheTensors t;

  Cache(DType of, bool paged, Scales scales) : dtype(of) {
    const int64_t batch = paged ? 6 : kBatch, rows = paged ? 4 : 12, all = batch * rows * kHeads;
    k.assign(static_cast<std::size_t>(all * row_elements(of, kDim) * size_of(of)), kBefore);
    v = k;
    t.k_cache = Tensor::bshd(k.data(), of, batch, rows, kHeads, kDim);
    t.v_cache = Tensor::bshd(v.data(), of, batch, rows, kHeads, kDim);
    if (scales == Scales::none) return;
    const bool token = scales == Scales::of_token;
    k_scale.assign(static_cast<std::size_t>(token ? all : 1), 0.02F);
    v_scale.assign(k_scale.size(), 0.03F);
    const auto view = [&](std::vector<float>& x) {
      return token ? Tensor::bshd(x.data(), DType::fp32, batch, rows, kHeads, 1)
                   : Tensor::vector(x.data(), DType::fp32, 1);
    };
    t.k_scale = view(k_scale);
    t.v_scale = view(v_scale);
  }
};

struct NewRows {
  std::vector<float> k, v, cos, sin;
  std::vector<int> used{5, 2}, table{5, 1, 3, 0, 4, 2};

  explicit NewRows(Random& random) {
    for (int64_t n = 0; n < kBatch * kNew * kHeads * kDim; ++n) {
      k.push_back(random.normal());
      v.push_back(random.normal());
    }
    for (int64_t n = 0; n < kPositions * kHalf; ++n) {
      cos.push_back(std::cos(0.1F * static_cast<float>(n)));
      sin.push_back(std::sin(0.1F * static_cast<float>(n)));
    }
  }
  void give(KvCacheTensors& t, bool paged) {
    t.k_new = Tensor::bshd(k.data(), DType::fp32, kBatch, kNew, kHeads, kDim);
    t.v_new = Tensor::bshd(v.data(), DType::fp32, kBatch, kNew, kHeads, kDim);
    t.rotary_cos = Tensor::matrix(cos.data(), DType::fp32, kPositions, kHalf);
    t.rotary_sin = Tensor::matrix(sin.data(), DType::fp32, kPositions, kHalf);
    t.seqlens_k = Tensor::vector(used.data(), DType::int32, kBatch);
    if (paged) t.block_table = Tensor::matrix(table.data(), DType::int32, kBatch, 3);
  }
};

TEST(AppendQuantized, StoresWhatQuantizingTheRowsGives) {
  for (const DType dtype : {DType::int8, DType::fp8_e4m3, DType::fp8_e5m2, DType::q8_0, DType::q4_0,
                            DType::q4_1, DType::q5_0, DType::q5_1}) {
    for (const bool paged : {false, true}) {
      for (const Scales scales : {Scales::none, Scales::of_tensor, Scales::of_token}) {
        if (block_bytes(dtype) > 0 && scales != Scales::none) continue;
        Random random(480);
        NewRows rows(random);
        Cache plain(DType::fp32, paged, Scales::none), cache(dtype, paged, scales);
        rows.give(plain.t, paged);
        rows.give(cache.t, paged);
        for (const KvCacheTensors* t : {&plain.t, &cache.t}) {
          const Status status = append_kv(*t, {}, "cpu");
          ASSERT_TRUE(status.ok()) << status.message();
        }
        Cache expected(dtype, paged, scales);
        const QuantizeOptions given{.given_scales = scales == Scales::of_tensor};
        for (const Status& status :
             {quantize_kv(plain.t.k_cache, expected.t.k_cache, expected.t.k_scale, given),
              quantize_kv(plain.t.v_cache, expected.t.v_cache, expected.t.v_scale, given)}) {
          ASSERT_TRUE(status.ok()) << status.message();
        }
        // Rows that were appended hold that, the others what was there before.
        const auto row_bytes =
            static_cast<std::size_t>(row_elements(dtype, kDim)) * static_cast<std::size_t>(kHeads);
        std::vector<bool> written(plain.k.size() / (kDim * kHeads * sizeof(float)));
        for (int64_t b = 0; b < kBatch; ++b) {
          for (int64_t i = 0; i < kNew; ++i) {
            const int64_t row = rows.used[static_cast<std::size_t>(b)] + i;
            const int64_t at =
                paged ? rows.table[static_cast<std::size_t>(b * 3 + row / 4)] * 4 + row % 4
                      : b * 12 + row;
            written[static_cast<std::size_t>(at)] = true;
          }
        }
        const std::vector<uint8_t> before(row_bytes, kBefore);
        for (std::size_t row = 0; row < written.size(); ++row) {
          for (const auto& [ours, theirs] :
               {std::pair{&cache.k, &expected.k}, {&cache.v, &expected.v}}) {
            const uint8_t* want = written[row] ? theirs->data() + row * row_bytes : before.data();
            EXPECT_EQ(std::memcmp(ours->data() + row * row_bytes, want, row_bytes), 0)
                << to_string(dtype) << " row " << row << (paged ? " of pages" : "");
          }
          for (int64_t h = 0; scales == Scales::of_token && h < kHeads; ++h) {
            const std::size_t n = row * kHeads + static_cast<std::size_t>(h);
            EXPECT_EQ(cache.k_scale[n], written[row] ? expected.k_scale[n] : 0.02F);
            EXPECT_EQ(cache.v_scale[n], written[row] ? expected.v_scale[n] : 0.03F);
          }
        }
      }
    }
  }
}

TEST(AppendQuantized, RefusesInSentences) {
  const auto refused = [](const auto& bend, const std::string& words) {
    Random random(481);
    NewRows rows(random);
    Cache cache(DType::int8, false, Scales::of_token);
    rows.give(cache.t, false);
    bend(cache);
    const Status status = append_kv(cache.t, {}, "cpu");
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    for (const uint8_t byte : cache.k) ASSERT_EQ(byte, kBefore);
  };
  refused([](Cache& c) { c.t.k_new.dtype = DType::int8; },
          "k_new.dtype is int8: fp32, fp16 and bf16 are accepted");
  refused([](Cache& c) { c.t.v_cache.dtype = DType::boolean; },
          "v_cache.dtype is boolean: fp32, int8, fp8 and the block formats are accepted");
  refused([](Cache& c) { c.t.k_scale.shape[2] = 1; },
          "k_scale.shape is [2, 12, 1, 1]: that of the cache without channels = [2, 12, 2, 1]");
  refused([](Cache& c) { c.t.v_scale.dtype = DType::bf16; },
          "v_scale.dtype is bf16: fp32 and fp16 are accepted");
  refused([](Cache& c) { c.t.v_scale.data = nullptr; }, "v_scale.data is null");
  refused([](Cache& c) { c.t.k_scale.data = c.t.k_new.data; }, "overlaps");
  Random random(482);
  NewRows rows(random);
  Cache plain(DType::fp32, false, Scales::of_tensor);
  rows.give(plain.t, false);
  EXPECT_NE(append_kv(plain.t, {}, "cpu").message().find("k_scale is given, k_cache.dtype is fp32"),
            std::string::npos);
}

}  // namespace
}  // namespace fulmen::testing
