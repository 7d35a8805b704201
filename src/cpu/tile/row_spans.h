// Which keys of a tile its query rows attend, as a range for every few rows: what lies before and
// behind it is left out of the tile's products and softmax. It would add zeros alone, so results
// are the same bits.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile/mask_summary.h"
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

// The rows that attend some of a few keys, in words of kGroup rows: what the products of keys by
// queries run over, whose rows are keys from `first` on.
template <int kGroup>
struct KeyRowWords {
  const RowSpans& spans;
  int first;
  int rows;  // of the tile
  FULMEN_INLINE KeySpan of(int key, int keys) const {
    KeySpan found{0, rows};
    if (!spans.same) {
      found = {};
      const int begin = first + key, end = begin + keys;
      for (int i = 0; i * kSpanRows < rows; ++i) {
        const KeySpan& span = spans.spans[i];
        if (span.count() > 0 && span.begin < end && span.end > begin)
          found.include({i * kSpanRows, (i + 1) * kSpanRows});
      }
      found.end = found.end < rows ? found.end : rows;
    }
    return {found.begin / kGroup, (found.end + kGroup - 1) / kGroup};
  }
};

// The first key of a tile's `count` that some row may attend, rounded down to a multiple of
// kSpanKeys. any: the keys in the rows' band. kept(key, keys): what the mask keeps of a summarised
// part of the tile.
template <class KeptOf>
FULMEN_INLINE int first_attended(const algorithm::KeyRange& any, int64_t first, int count,
                                 const KeptOf& kept) {
  int begin = 0;
  while (begin + kMaskKeys < count && kept(begin, kMaskKeys) == Kept::none) begin += kMaskKeys;
  const int64_t in_band = any.begin - first;
  return in_band <= begin ? begin : static_cast<int>(in_band / kSpanKeys * kSpanKeys);
}
// The keys from `begin` on without the parts at either end that the mask keeps whole.
template <class KeptOf>
FULMEN_INLINE KeySpan asked_keys(int begin, int count, const KeptOf& kept) {
  KeySpan asked{begin, count};
  const auto keeps_all = [&](int key) __attribute__((always_inline)) {
    const int part = key / kMaskKeys * kMaskKeys;
    return kept(part, count - part < kMaskKeys ? count - part : kMaskKeys) == Kept::all;
  };
  while (asked.count() > 0 && keeps_all(asked.begin))
    asked.begin = asked.begin / kMaskKeys * kMaskKeys + kMaskKeys;
  while (asked.count() > 0 && keeps_all(asked.end - 1))
    asked.end = (asked.end - 1) / kMaskKeys * kMaskKeys;
  return asked;
}

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

// What a tile [keys][kBlockM] has outside the spans of blocks of kRows rows, but inside that of all
// rows, becomes x: products left it out.
template <class Isa, int kRows>
__attribute__((noinline)) void fill_outside(const RowSpans& spans, float x, float* tile) {
  const auto value = Isa::set1(x);
  for (int row = 0; row < kBlockM && !spans.same; row += kRows) {
    const KeySpan span = spans.of(row, kRows);
    for (int key = spans.all.begin; key < spans.all.end; ++key) {
      if (span.count() > 0 && key == span.begin) key = span.end;
      if (key == spans.all.end) break;
      float* to = tile + static_cast<int64_t>(key) * kBlockM;
      for (int i = row; i < row + kRows && i < kBlockM; i += Isa::kLanes) Isa::store(to + i, value);
    }
  }
}

}  // namespace fulmen::cpu
