// Tiles of which a mask leaves out keys at either end, in the middle, all of them or all but one,
// for some rows or for all: the spans of keys that CPU kernels compute, and every kernel beside the
// oracle.
#include "cpu/tile/row_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpu/isa/scalar.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Keys [from, to) without [gap, past) of each query; rows one after the other share theirs.
struct Ranges {
  std::vector<int32_t> from, to, gap, past;
  std::vector<FunctionTensor> list;
  std::vector<uint8_t> keep;
  static constexpr const char* kMask = "k >= from[q] & k < to[q] & (k < gap[q] | k >= past[q])";

  Ranges(int64_t rows, int64_t keys, Random& random) {
    const auto place = [&] { return static_cast<int32_t>(random.between(0, keys)); };
    while (static_cast<int64_t>(from.size()) < rows) {
      const int64_t run = random.pick({1, 3, 8, 24, 40, 64, 130});
      int32_t a = place(), b = place(), c = place(), d = place();
      switch (random.between(0, 6)) {
        case 0:  // all keys
          a = 0, b = static_cast<int32_t>(keys), c = d = 0;
          break;
        case 1:  // nothing before a key
          b = static_cast<int32_t>(keys), c = d = 0;
          break;
        case 2:  // nothing behind one
          a = 0, c = d = 0;
          break;
        case 3:  // nothing on both sides
          if (a > b) std::swap(a, b);
          c = d = 0;
          break;
        case 4:  // nothing in the middle
          a = 0, b = static_cast<int32_t>(keys);
          if (c > d) std::swap(c, d);
          break;
        case 5:  // one key
          a = static_cast<int32_t>(random.between(0, keys - 1)), b = a + 1, c = d = 0;
          break;
        default:  // no key
          b = a;
      }
      for (int64_t i = 0; i < run; ++i) {
        from.push_back(a), to.push_back(b);
        gap.push_back(c), past.push_back(d);
      }
    }
    for (auto* values : {&from, &to, &gap, &past}) values->resize(static_cast<std::size_t>(rows));
    const auto tensor = [&](const char* name, std::vector<int32_t>& values) {
      list.push_back({name, 1, Tensor{values.data(), DType::int32, {rows}, {1}}, {}});
    };
    tensor("from", from), tensor("to", to), tensor("gap", gap), tensor("past", past);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < keys; ++j) keep.push_back(attends(i, j) ? 1 : 0);
    }
  }
  bool attends(int64_t row, int64_t key) const {
    const auto i = static_cast<std::size_t>(row);
    return key >= from[i] && key < to[i] && (key < gap[i] || key >= past[i]);
  }
};

CaseSpec spec_of(Random& random) {
  CaseSpec s;
  s.dtype = random.pick({DType::fp32, DType::fp32, DType::bf16, DType::fp16});
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 2);
  s.seqlen_q = random.between(1, 300);
  s.seqlen_k = random.between(1, 400);
  s.head_dim = random.pick<int64_t>({8, 16, 40, 64, 80});
  s.head_dim_v = random.pick<int64_t>({s.head_dim, 24});
  s.layout = random.pick({Layout::bshd, Layout::bhsd});
  s.causal = random.pick({Causal::none, Causal::none, Causal::bottom_right, Causal::top_left});
  if (random.chance(0.2)) s.window_left = random.between(1, 200);
  s.bias = random.chance(0.2);
  s.alibi = random.chance(0.2) ? 1 : 0;
  s.softcap = random.chance(0.2) ? 20.0F : 0.0F;
  s.sinks = random.chance(0.2);
  s.dropout = random.chance(0.2) ? 0.2F : 0.0F;
  return s;
}

// NaN in what no query of the ranges attends.
void hide_nan(Case& c, const Ranges& ranges) {
  const CaseSpec& s = c.spec;
  for (int64_t j = 0; j < s.seqlen_k; ++j) {
    bool attended = false;
    for (int64_t i = 0; i < s.seqlen_q; ++i) attended = attended || ranges.attends(i, j);
    for (int64_t h = 0; h < s.num_kv_heads && !attended; ++h) {
      for (int64_t d = 0; d < s.head_dim; ++d) Case::set(c.tensors.k, {0, j, h, d}, NAN);
      for (int64_t d = 0; d < s.head_dim_v; ++d) Case::set(c.tensors.v, {0, j, h, d}, NAN);
    }
  }
}

void expect_ranges_verified(bool backward, uint64_t stream) {
  for (uint64_t n = 0; n < (long_run() ? 300 : 30); ++n) {
    Random random(stream + n);
    CaseSpec spec = spec_of(random);
    spec.backward = backward;
    Case c(spec, random);
    Functions functions(spec, random, backward && random.chance(0.3));
    Ranges ranges(spec.seqlen_q, spec.seqlen_k, random);
    std::vector<FunctionTensor> list = functions.list;
    list.insert(list.end(), ranges.list.begin(), ranges.list.end());
    if (random.chance(0.7)) {
      c.options.mask_mod = Ranges::kMask;
      if (random.chance(0.4)) c.options.score_mod = kScores[random.between(0, 3)];
      c.tensors.function_tensors = list;
    } else {
      c.tensors.keep_mask =
          Tensor::bhqk(ranges.keep.data(), DType::boolean, 1, 1, spec.seqlen_q, spec.seqlen_k);
    }
    if (backward) set_forward_results(c);
    if (random.chance(0.5)) hide_nan(c, ranges);
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 1);
  }
}

TEST(RowSpans, ForwardKernelsAgreeWithTheOracle) { expect_ranges_verified(false, 12900); }
TEST(RowSpans, BackwardKernelsAgreeWithTheOracle) { expect_ranges_verified(true, 13900); }

// Spans beside a plain look at what is masked: they hold all that is attended, and no more than the
// multiples of kSpanKeys around it.
TEST(RowSpans, AreTheKeysThatRowsAttend) {
  using cpu::kBlockM, cpu::kSpanKeys, cpu::kSpanRows;
  for (uint64_t n = 0; n < 200; ++n) {
    Random random(14900 + n);
    const int rows = static_cast<int>(random.between(1, kBlockM)),
              keys = static_cast<int>(random.between(1, cpu::kMaxBlockN));
    const int64_t row = kBlockM * random.between(0, 3), first = 64 * random.between(0, 3);
    const algorithm::Band band{first + keys, random.between(-50, 50),
                               random.pick<int64_t>({-1, 10, 100}),
                               random.pick<int64_t>({-1, 0, 30})};
    const Ranges ranges(kBlockM, keys, random);
    const bool by_band = random.chance(0.7), by_mask = !by_band || random.chance(0.7);
    std::vector<float> additive(static_cast<std::size_t>(keys) * kBlockM);
    for (int j = 0; j < keys; ++j) {
      for (int i = 0; i < kBlockM; ++i)
        additive[static_cast<std::size_t>(j * kBlockM + i)] =
            ranges.attends(i, j) ? NAN : -INFINITY;
    }
    const cpu::RowSpans spans = cpu::attended_spans<cpu::Scalar>(
        by_band ? &band : nullptr, by_mask ? additive.data() : nullptr, row, rows, first,
        {0, keys});
    int least = keys, most = 0;
    for (int at = 0; at < rows; at += kSpanRows) {
      int begin = keys, end = 0;
      const auto around = band.any(row + at, row + std::min(at + kSpanRows, rows));
      for (int i = at; i < at + kSpanRows; ++i) {
        for (int j = 0; j < keys; ++j) {
          if (by_mask && !ranges.attends(i, j)) continue;
          if (by_band && (first + j < around.begin || first + j >= around.end)) continue;
          begin = std::min(begin, j), end = std::max(end, j + 1);
        }
      }
      const cpu::KeySpan span = spans.of(at, kSpanRows);
      if (begin >= end) {
        EXPECT_EQ(span.count(), 0) << "rows from " << at << " n=" << n;
        continue;
      }
      least = std::min(least, begin), most = std::max(most, end);
      EXPECT_EQ(span.begin, begin / kSpanKeys * kSpanKeys) << "rows from " << at << " n=" << n;
      EXPECT_EQ(span.end, std::min<int>(cpu::round_up(end, kSpanKeys), keys));
    }
    if (least < most) {
      EXPECT_EQ(spans.all.begin, least / kSpanKeys * kSpanKeys);
      EXPECT_EQ(spans.all.end, std::min<int>(cpu::round_up(most, kSpanKeys), keys));
    } else {
      EXPECT_EQ(spans.all.count(), 0);
    }
  }
}

// Rows that attend some of a few keys: what the products of keys by queries run over.
TEST(RowSpans, RowsOfKeysAreThoseThatAttendSome) {
  cpu::RowSpans spans({4, 40});
  spans.same = false;
  spans.spans[1] = {8, 16};
  spans.spans[2] = {12, 40};
  spans.spans[5] = {4, 8};
  const cpu::KeyRowWords<1> rows{spans, 4, 45};
  const cpu::KeyRowWords<2> pairs{spans, 4, 45};
  EXPECT_TRUE(rows.of(0, 4) == (cpu::KeySpan{40, 45}));  // keys 4 to 7
  EXPECT_TRUE(rows.of(4, 4) == (cpu::KeySpan{8, 16}));
  EXPECT_TRUE(rows.of(8, 4) == (cpu::KeySpan{8, 24}));
  EXPECT_TRUE(rows.of(12, 4) == (cpu::KeySpan{16, 24}));
  EXPECT_TRUE(rows.of(0, 8) == (cpu::KeySpan{8, 45}));
  EXPECT_TRUE(rows.of(36, 4) == cpu::KeySpan{});
  EXPECT_TRUE(pairs.of(0, 4) == (cpu::KeySpan{20, 23}));
  spans.same = true;
  EXPECT_TRUE(pairs.of(36, 4) == (cpu::KeySpan{0, 23}));
}

}  // namespace
}  // namespace fulmen::testing
