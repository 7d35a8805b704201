// Which keys of a tile its query rows attend, as a range for every few rows: what lies before and
// behind it is left out of the tile's products and softmax. It would add zeros alone, so results
// are the same bits.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

constexpr int kSpanRows = 8;  // rows that share a span
// Spans begin and end at its multiples: register blocks of products, pairs of keys, and the keys
// whose pairs score functions compute together.
constexpr int kSpanKeys = 4;

// Keys, or words of them, counted from the tile's first.
struct KeySpan {
  int begin = 0;
  int end = 0;

  FULMEN_INLINE int count() const { return end - begin; }
  FULMEN_INLINE bool operator==(const KeySpan& other) const {
    return begin == other.begin && end == other.end;
  }
  FULMEN_INLINE void include(const KeySpan& other) {
    if (other.count() == 0) return;
    begin = count() == 0 || other.begin < begin ? other.begin : begin;
    end = other.end > end ? other.end : end;
  }
};

// The same span for all rows.
struct SameSpan {
  KeySpan span;
  FULMEN_INLINE KeySpan of(int /*row*/, int /*rows*/) const { return span; }
};

struct RowSpans {
  static constexpr int kSpans = kBlockM / kSpanRows;

  KeySpan all;       // what any row attends
  bool same = true;  // all rows share that
  KeySpan spans[kSpans] = {};

  FULMEN_INLINE explicit RowSpans(KeySpan span) : all(span) {}
  // What some of these rows attend.
  FULMEN_INLINE KeySpan of(int row, int rows) const {
    if (same) return all;
    KeySpan found;
    const int end = row + rows < kBlockM ? row + rows : kBlockM;
    for (int i = row / kSpanRows; i * kSpanRows < end; ++i) found.include(spans[i]);
    return found;
  }
};

// The same in words of kGroup keys.
template <int kGroup>
struct SpanWords {
  const RowSpans& spans;
  FULMEN_INLINE KeySpan of(int row, int rows) const {
    const KeySpan keys = spans.of(row, rows);
    return {keys.begin / kGroup, (keys.end + kGroup - 1) / kGroup};
  }
};

// Whether all rows from `row` on, whole vectors of them, are masked in a row of an additive tile.
template <class Isa>
FULMEN_INLINE bool is_masked_key(const float* additive, int row, int rows) {
  const auto minus_infinity = Isa::set1(-__builtin_inff());
  for (int i = row; i < row + rows; i += Isa::kLanes) {
    if (!Isa::all_equal(Isa::load(additive + i), minus_infinity)) return false;
  }
  return true;
}

// The spans of a tile's rows within [keys.begin, keys.end), whose first key is `first`; keys.begin
// is a multiple of kSpanKeys. band: null where it leaves none of them out. additive: the tile
// [keys][kBlockM] of what is added to scores, whose -inf are masked, or null.
template <class Isa>
__attribute__((noinline)) RowSpans attended_spans(const algorithm::Band* band,
                                                  const float* additive, int64_t row, int rows,
                                                  int64_t first, KeySpan keys) {
  constexpr int kRows = Isa::kLanes > kSpanRows ? Isa::kLanes : kSpanRows;
  RowSpans found({});
  for (int at = 0; at < rows; at += kRows) {
    KeySpan span = keys;
    if (band != nullptr) {
      const auto any = band->any(row + at, row + (at + kRows < rows ? at + kRows : rows));
      const auto clamped = [&](int64_t key) __attribute__((always_inline)) {
        return static_cast<int>(algorithm::Band::clamp(key - first, span.begin, span.end));
      };
      span = {clamped(any.begin), clamped(any.end)};
    }
    if (additive != nullptr) {
      const auto masked = [&](int key) __attribute__((always_inline)) {
        return is_masked_key<Isa>(additive + static_cast<int64_t>(key) * kBlockM, at, kRows);
      };
      while (span.count() > 0 && masked(span.begin)) ++span.begin;
      while (span.count() > 0 && masked(span.end - 1)) --span.end;
    }
    if (span.count() > 0) {
      span.begin = span.begin / kSpanKeys * kSpanKeys;
      const auto end = static_cast<int>(round_up(span.end, kSpanKeys));
      span.end = end < keys.end ? end : keys.end;
    } else {
      span = {};
    }
    for (int i = at; i < at + kRows; i += kSpanRows) found.spans[i / kSpanRows] = span;
    found.all.include(span);
  }
  for (int at = 0; at < rows; at += kSpanRows)
    found.same = found.same && found.spans[at / kSpanRows] == found.all;
  return found;
}

// Scores outside the spans of blocks of kRows rows, but inside that of all rows, become -inf: a
// product left them out, and a score function computes whole tiles.
template <class Isa, int kRows>
__attribute__((noinline)) void clear_outside(const RowSpans& spans, float* scores) {
  const auto minus_infinity = Isa::set1(-__builtin_inff());
  for (int row = 0; row < kBlockM; row += kRows) {
    const KeySpan span = spans.of(row, kRows);
    for (int key = spans.all.begin; key < spans.all.end; ++key) {
      if (key == span.begin && span.count() > 0) key = span.end;
      if (key == spans.all.end) break;
      float* to = scores + static_cast<int64_t>(key) * kBlockM;
      for (int i = row; i < row + kRows && i < kBlockM; i += Isa::kLanes)
        Isa::store(to + i, minus_infinity);
    }
  }
}

}  // namespace fulmen::cpu
