// Appending to a KV cache: the rows that it writes and no others, its rotary embedding, its
// refusals, and attention afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "c_views.h"
#include "runtime/float_formats.h"
#include "support/random.h"

namespace fulmen {
namespace {

using testing::Random;

// A cache of two sequences and new rows for it.
struct CacheCall {
  static constexpr int64_t kBatch = 2, kRows = 12, kNew = 3, kQueries = 2, kHeads = 4, kKvHeads = 2,
                           kDim = 10, kDimV = 6;
  static constexpr int64_t kPageSize = 4, kPages = 8, kHalf = 3, kPositions = 16;
  DType dtype;
  bool paged;
  std::vector<uint8_t> k, v, k_new, v_new, q, q_out;
  std::vector<float> cos, sin;
  std::vector<int> used{5, 2}, after{-1, -1}, table{6, 1, 4, 0, 7, 2};
  KvCacheTensors t;
  KvCacheOptions options;

  CacheCall(DType type, bool pages, Random& random) : dtype(type), paged(pages) {
    const int64_t batch = paged ? kPages : kBatch, rows = paged ? kPageSize : kRows;
    t.k_cache = make(k, batch, rows, kKvHeads, kDim, random);
    t.v_cache = make(v, batch, rows, kKvHeads, kDimV, random);
    t.k_new = make(k_new, kBatch, kNew, kKvHeads, kDim, random);
    t.v_new = make(v_new, kBatch, kNew, kKvHeads, kDimV, random);
    t.q = make(q, kBatch, kQueries, kHeads, kDim, random);
    t.q_out = make(q_out, kBatch, kQueries, kHeads, kDim, random);
    for (int64_t n = 0; n < kPositions * kHalf; ++n) {
      const int64_t position = n / kHalf, pair = n % kHalf;
      const double angle = static_cast<double>(position) *
                           std::pow(100.0, -static_cast<double>(pair) / static_cast<double>(kHalf));
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    t.rotary_cos = {cos.data(), DType::fp32, {1, 1, kPositions, kHalf}, {0, 0, kHalf, 1}};
    t.rotary_sin = {sin.data(), DType::fp32, {1, 1, kPositions, kHalf}, {0, 0, kHalf, 1}};
    t.seqlens_k = {used.data(), DType::int32, {1, 1, 1, kBatch}, {0, 0, 0, 1}};
    t.seqlens_k_out = {after.data(), DType::int32, {1, 1, 1, kBatch}, {0, 0, 0, 1}};
    if (paged) t.block_table = {table.data(), DType::int32, {1, 1, kBatch, 3}, {0, 0, 3, 1}};
  }
  Tensor make(std::vector<uint8_t>& memory, int64_t batch, int64_t rows, int64_t heads, int64_t dim,
              Random& random) const {
    memory.resize(static_cast<std::size_t>(batch * rows * heads * dim * size_of(dtype)));
    Tensor tensor = Tensor::bshd(memory.data(), dtype, batch, rows, heads, dim);
    for (int64_t n = 0; n < batch * rows * heads * dim; ++n)
      reference::store_float(tensor.data, dtype, n, random.normal());
    return tensor;
  }
  float get(const Tensor& x, int64_t a, int64_t b, int64_t c, int64_t d) const {
    return reference::load_float(x.data, dtype,
                                 a * x.strides[0] + b * x.strides[1] + c * x.strides[2] + d);
  }
  // Where row `row` of sequence b is in the cache.
  std::pair<int64_t, int64_t> place(int64_t b, int64_t row) const {
    if (!paged) return {b, row};
    return {table[static_cast<std::size_t>(b * 3 + row / kPageSize)], row % kPageSize};
  }
  // Element d of a head's row, turned as at this position, in double.
  double turned(const Tensor& x, int64_t a, int64_t b, int64_t c, int64_t d,
                int64_t position) const {
    if (d >= 2 * kHalf) return static_cast<double>(get(x, a, b, c, d));
    const bool pairs = options.rotary_interleaved;
    const int64_t i = pairs ? d / 2 : d % kHalf, first = pairs ? 2 * i : i,
                  second = pairs ? 2 * i + 1 : i + kHalf;
    const auto at = static_cast<std::size_t>(position * kHalf + i);
    const auto x0 = static_cast<double>(get(x, a, b, c, first)),
               x1 = static_cast<double>(get(x, a, b, c, second));
    const auto cosine = static_cast<double>(cos[at]), sine = static_cast<double>(sin[at]);
    return d == first ? x0 * cosine - x1 * sine : x0 * sine + x1 * cosine;
  }
  void expect_near(float value, double expected) const {
    const double size = dtype == DType::fp32 ? 1e-6 : dtype == DType::fp16 ? 0x1p-11 : 0x1p-8;
    EXPECT_NEAR(static_cast<double>(value), expected, size * std::max(1.0, std::fabs(expected)));
  }
};

class AppendKv : public ::testing::TestWithParam<std::tuple<DType, bool, bool, bool>> {};

TEST_P(AppendKv, WritesTurnedRowsAndNothingElse) {
  const auto [dtype, paged, interleaved, advance] = GetParam();
  Random random(60);
  CacheCall c(dtype, paged, random);
  c.options.rotary_interleaved = interleaved;
  c.options.queries_advance = advance;
  // Its tensors still point at c's memory: only its vectors are the state before.
  CacheCall expected = c;
  const Status status = append_kv(c.t, c.options);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<uint8_t> k = expected.k, v = expected.v;
  const auto bytes = static_cast<std::size_t>(size_of(dtype));
  for (int64_t b = 0; b < CacheCall::kBatch; ++b) {
    for (int64_t i = 0; i < CacheCall::kNew; ++i) {
      const int64_t position = c.used[static_cast<std::size_t>(b)] + i;
      const auto [page, row] = c.place(b, position);
      for (int64_t h = 0; h < CacheCall::kKvHeads; ++h) {
        for (int64_t d = 0; d < CacheCall::kDim; ++d) {
          c.expect_near(c.get(c.t.k_cache, page, row, h, d),
                        c.turned(c.t.k_new, b, i, h, d, position));
        }
        for (int64_t d = 0; d < CacheCall::kDimV; ++d) {
          EXPECT_EQ(c.get(c.t.v_cache, page, row, h, d), c.get(c.t.v_new, b, i, h, d));
        }
      }
      // Copies the row that the call wrote into the state before; all other rows must be equal
      // already.
      const auto copy = [&, page = page, row = row](const Tensor& cache,
                                                    std::vector<uint8_t>& before,
                                                    const std::vector<uint8_t>& now) {
        const auto at =
            static_cast<std::size_t>(page * cache.strides[0] + row * cache.strides[1]) * bytes;
        const auto size = static_cast<std::size_t>(cache.strides[1]) * bytes;
        std::copy_n(now.begin() + static_cast<std::ptrdiff_t>(at), size,
                    before.begin() + static_cast<std::ptrdiff_t>(at));
      };
      copy(c.t.k_cache, k, c.k);
      copy(c.t.v_cache, v, c.v);
    }
    for (int64_t i = 0; i < CacheCall::kQueries; ++i) {
      const int64_t position = c.used[static_cast<std::size_t>(b)] + (advance ? i : 0);
      for (int64_t h = 0; h < CacheCall::kHeads; ++h) {
        for (int64_t d = 0; d < CacheCall::kDim; ++d) {
          c.expect_near(c.get(c.t.q_out, b, i, h, d), c.turned(c.t.q, b, i, h, d, position));
        }
      }
    }
  }
  EXPECT_EQ(k, c.k);
  EXPECT_EQ(v, c.v);
  EXPECT_EQ(c.q, expected.q);
  EXPECT_EQ(c.after, (std::vector<int>{8, 5}));
  // In place, on one thread and on several: the same bits.
  const std::vector<uint8_t> turned = c.q_out;
  KvCacheTensors in_place = c.t;
  in_place.q_out = in_place.q;
  c.options.num_threads = 3;
  ASSERT_TRUE(append_kv(in_place, c.options).ok());
  EXPECT_EQ(c.q, turned);
  EXPECT_EQ(k, c.k);
}

INSTANTIATE_TEST_SUITE_P(
    Any, AppendKv,
    ::testing::Combine(::testing::Values(DType::fp32, DType::fp16, DType::bf16), ::testing::Bool(),
                       ::testing::Bool(), ::testing::Bool()));

TEST(KvCache, WithoutRotaryRowsAreCopied) {
  Random random(61);
  CacheCall c(DType::bf16, true, random);
  c.t.rotary_cos = c.t.rotary_sin = c.t.q = c.t.q_out = c.t.seqlens_k_out = {};
  ASSERT_TRUE(append_kv(c.t).ok());
  const auto [page, row] = c.place(1, 4);
  for (int64_t d = 0; d < CacheCall::kDim; ++d)
    EXPECT_EQ(c.get(c.t.k_cache, page, row, 1, d), c.get(c.t.k_new, 1, 2, 1, d));
  EXPECT_EQ(c.after, (std::vector<int>{-1, -1}));
}

// A step of generation: append, then attend with the lengths that append gave.
TEST(KvCache, AttentionOverWhatWasAppended) {
  Random random(62);
  CacheCall c(DType::fp32, true, random);
  c.t.rotary_cos = c.t.rotary_sin = c.t.q_out = {};
  const Tensor q = c.t.q;
  c.t.q = {};
  ASSERT_TRUE(append_kv(c.t).ok());
  std::vector<float> out(CacheCall::kBatch * CacheCall::kQueries * CacheCall::kHeads *
                         CacheCall::kDimV);
  AttentionTensors t;
  t.q = q;
  t.k = c.t.k_cache;
  t.v = c.t.v_cache;
  t.out = Tensor::bshd(out.data(), DType::fp32, CacheCall::kBatch, CacheCall::kQueries,
                       CacheCall::kHeads, CacheCall::kDimV);
  t.seqlens_k = c.t.seqlens_k_out;
  t.block_table = c.t.block_table;
  AttentionOptions options;
  options.causal = Causal::bottom_right;
  const Status status = attention(t, options);
  ASSERT_TRUE(status.ok()) << status.message();
  const VerifyReport report = verify_result(make_problem(t, options).value(), t);
  EXPECT_TRUE(report.ok) << report.message;
}

TEST(KvCache, ThroughC) {
  Random random(63);
  CacheCall cpp(DType::fp16, true, random);
  CacheCall c = cpp;
  cpp.options.rotary_interleaved = cpp.options.queries_advance = false;
  ASSERT_TRUE(append_kv(cpp.t, cpp.options).ok());
  fulmen_kv_cache call;
  fulmen_kv_cache_init(&call);
  const auto at = [](Tensor tensor, std::vector<uint8_t>& memory) {
    tensor.data = memory.data();
    return testing::view(tensor);
  };
  call.k_cache = at(cpp.t.k_cache, c.k);
  call.v_cache = at(cpp.t.v_cache, c.v);
  call.k_new = at(cpp.t.k_new, c.k_new);
  call.v_new = at(cpp.t.v_new, c.v_new);
  call.q = at(cpp.t.q, c.q);
  call.q_out = at(cpp.t.q_out, c.q_out);
  call.rotary_cos = testing::view(cpp.t.rotary_cos);
  call.rotary_sin = testing::view(cpp.t.rotary_sin);
  call.seqlens_k = testing::view(cpp.t.seqlens_k);
  call.block_table = testing::view(cpp.t.block_table);
  call.rotary_interleaved = call.queries_advance = false;
  const std::vector<uint8_t> before = c.k;
  ASSERT_EQ(fulmen_append_kv_check(&call), FULMEN_OK) << fulmen_last_error();
  EXPECT_TRUE(c.k == before);
  ASSERT_EQ(fulmen_append_kv(&call, "cpu", nullptr), FULMEN_OK) << fulmen_last_error();
  EXPECT_TRUE(cpp.k == c.k && cpp.v == c.v && cpp.q_out == c.q_out);
  call.k_new.shape[1] = 4;
  EXPECT_EQ(fulmen_append_kv(&call, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("v_new.shape"), std::string::npos);
  EXPECT_EQ(fulmen_append_kv_check(&call), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("v_new.shape"), std::string::npos);
  EXPECT_EQ(fulmen_append_kv(nullptr, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_append_kv_check(nullptr), FULMEN_INVALID_ARGUMENT);
  call.struct_size = 1;
  EXPECT_EQ(fulmen_append_kv(&call, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
}

struct BadCache {
  const char* name;
  std::function<void(CacheCall&)> bend;
  std::vector<std::string> said;
};
class CacheErrors : public ::testing::TestWithParam<BadCache> {};

TEST_P(CacheErrors, NameArgumentValueAndWhatIsAccepted) {
  Random random(64);
  CacheCall c(DType::fp32, true, random);
  GetParam().bend(c);
  const std::vector<uint8_t> k = c.k, v = c.v, q_out = c.q_out;
  const Status status = append_kv(c.t, c.options);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const std::string& text : GetParam().said) {
    EXPECT_NE(status.message().find(text), std::string::npos)
        << "\"" << text << "\" is not in: " << status.message();
  }
  EXPECT_TRUE(k == c.k && v == c.v && q_out == c.q_out && c.after[0] == -1);
}

INSTANTIATE_TEST_SUITE_P(
    Any, CacheErrors,
    ::testing::Values(
        BadCache{"NoCache", [](CacheCall& c) { c.t.v_cache = {}; }, {"v_cache is missing"}},
        BadCache{"NoLengths", [](CacheCall& c) { c.t.seqlens_k = {}; }, {"seqlens_k is missing"}},
        BadCache{"Dtype",
                 [](CacheCall& c) { c.t.k_cache.dtype = DType::int32; },
                 {"k_cache.dtype is int32", "int8, fp8 and the block formats"}},
        BadCache{"DtypeOfNew",
                 [](CacheCall& c) { c.t.k_new.dtype = DType::bf16; },
                 {"k_new.dtype is bf16", "fp32 is needed"}},
        BadCache{"DtypeOfLengths",
                 [](CacheCall& c) { c.t.seqlens_k.dtype = DType::fp32; },
                 {"seqlens_k.dtype is fp32", "int32"}},
        BadCache{"HeadDim",
                 [](CacheCall& c) { c.t.k_cache.shape[3] = 577; },
                 {"k_cache.shape", "577", "1 to 576"}},
        BadCache{"Pages",
                 [](CacheCall& c) { c.t.v_cache.shape[0] = 7; },
                 {"v_cache.shape is [7, 4, 2, 6]", "num_pages"}},
        BadCache{"PageSize",
                 [](CacheCall& c) { c.t.k_cache.shape[1] = 0; },
                 {"k_cache.shape", "page_size must be at least 1"}},
        BadCache{"TableShape",
                 [](CacheCall& c) { c.t.block_table.shape[2] = 1; },
                 {"block_table.shape", "[1, 1, batch, max_pages]"}},
        BadCache{"HalfNew",
                 [](CacheCall& c) { c.t.v_new = {}; },
                 {"v_new is missing", "both or neither"}},
        BadCache{"NewHeads",
                 [](CacheCall& c) { c.t.k_new.shape[2] = 1; },
                 {"k_new.shape is [2, 3, 1, 10]", "num_kv_heads"}},
        BadCache{
            "HalfRotary", [](CacheCall& c) { c.t.rotary_sin = {}; }, {"rotary_sin is missing"}},
        BadCache{"RotaryDim",
                 [](CacheCall& c) { c.t.rotary_cos.shape[3] = c.t.rotary_sin.shape[3] = 6; },
                 {"rotary_cos.shape", "rotary_dim / 2 is 6", "1 to head_dim / 2 = 5"}},
        BadCache{"RotaryShapes",
                 [](CacheCall& c) { c.t.rotary_sin.shape[2] = 9; },
                 {"rotary_sin.shape", "positions"}},
        BadCache{"NoPositions",
                 [](CacheCall& c) { c.t.rotary_cos.shape[2] = c.t.rotary_sin.shape[2] = 0; },
                 {"rotary_cos.shape is [1, 1, 0, 3]", "0 positions", "at least 3"}},
        BadCache{"RotaryDtype",
                 [](CacheCall& c) { c.t.rotary_cos.dtype = DType::bf16; },
                 {"rotary_cos.dtype is bf16", "fp32"}},
        BadCache{"QueriesAlone",
                 [](CacheCall& c) { c.t.rotary_cos = c.t.rotary_sin = {}; },
                 {"rotary_cos is missing", "nothing to do with q"}},
        BadCache{"QueriesOut", [](CacheCall& c) { c.t.q_out = {}; }, {"q_out is missing"}},
        BadCache{"Nothing",
                 [](CacheCall& c) { c.t.k_new = c.t.v_new = c.t.q = c.t.q_out = {}; },
                 {"nothing to do"}},
        BadCache{
            "Threads", [](CacheCall& c) { c.options.num_threads = -1; }, {"num_threads is -1"}},
        BadCache{"Null", [](CacheCall& c) { c.t.k_new.data = nullptr; }, {"k_new.data is null"}},
        BadCache{"Misaligned",
                 [](CacheCall& c) { c.t.v_cache.data = c.v.data() + 2; },
                 {"v_cache.data is", "divisible by the 4"}},
        BadCache{"Overlap",
                 [](CacheCall& c) { c.t.v_new.data = c.v.data(); },
                 {"v_cache at", "overlaps v_new"}},
        BadCache{"QueriesShifted",
                 [](CacheCall& c) { c.t.q_out.data = c.q.data() + 4; },
                 {"q_out at", "overlaps q at"}},
        BadCache{"LengthsInPlace",
                 [](CacheCall& c) { c.t.seqlens_k_out = c.t.seqlens_k; },
                 {"seqlens_k_out at", "overlaps seqlens_k"}},
        BadCache{"Full",
                 [](CacheCall& c) { c.used[1] = 10; },
                 {"seqlens_k[1] is 10", "3 new rows", "0 to 9"}},
        BadCache{"Negative", [](CacheCall& c) { c.used[0] = -1; }, {"seqlens_k[0] is -1"}},
        BadCache{"Positions",
                 [](CacheCall& c) { c.t.rotary_cos.shape[2] = c.t.rotary_sin.shape[2] = 7; },
                 {"seqlens_k[0] is 5", "3 positions", "rotary_cos has 7"}},
        BadCache{"NewRowsBeyondTheCache",
                 [](CacheCall& c) {
                   c.t.k_cache.shape[1] = c.t.v_cache.shape[1] = 1;
                   c.t.block_table.shape[3] = 2;
                 },
                 {"k_new has 3 rows", "2 rows in the cache"}},
        BadCache{"FewPositions",
                 [](CacheCall& c) { c.t.rotary_cos.shape[2] = c.t.rotary_sin.shape[2] = 2; },
                 {"rotary_cos.shape is [1, 1, 2, 3]", "at least 3"}},
        BadCache{
            "Page", [](CacheCall& c) { c.table[1] = 8; }, {"block_table[0, 1] is 8", "0 to 7"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(KvCache, BackendsWithoutItSaySo) {
  class Bare final : public Backend {
   public:
    std::string_view name() const noexcept override { return "bare_cache"; }
    std::vector<DeviceInfo> devices() const override {
      return {{"bare_cache", "none", "", true, ""}};
    }
    const std::vector<const Kernel*>& kernels() const override { return kernels_; }

   private:
    std::vector<const Kernel*> kernels_;
  };
  ASSERT_TRUE(register_backend(std::make_shared<Bare>()).ok());
  Random random(65);
  CacheCall c(DType::fp32, false, random);
  const Status status = append_kv(c.t, c.options, "bare_cache");
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("bare_cache cannot append"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fulmen
