// From scores to probabilities, in registers: the online softmax of 16 query rows.
#pragma once

#include "core/matrix.h"
#include "core/scores.h"

namespace fulmen::kernels {

// 16 rows' reference (of q.k with kPlainScale, else in the scores' units) and the sum of the lane's
// own probabilities. Probabilities are e^(score - reference): the reference follows the running
// maximum only when that is more than 2^kSlack away, so that most tiles need no rescaling of what
// was summed before.
constexpr float kSlack = kLosesSmall<Element> || kFp8Products ? 2.0F : 8.0F;
// In natural units. 2^5.8 takes no register on AMD.
constexpr float kNaturalSlack = kRoundedApart                          ? 0.0F
                                : kLosesSmall<Element> || kFp8Products ? 1.0F
                                                                       : 4.0F;
// Rows with scales of their own: it is kept as what exponents are shifted by, kShift less the
// reference times the scale, which is fewer operations; kNoShift before the first key.
constexpr bool kKeepsShift = kCodeKeys && kPlainScale;
constexpr float kNoShift = 0x1p127F;
struct RowState {
  float reference[kRowsPerLane];
  float sum[kRowsPerLane];

  FULMEN_DEVICE void clear() {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      reference[slot] = kKeepsShift ? kNoShift : -kInfinity;
      sum[slot] = 0;
    }
  }
};

// Probabilities and their sums are 2^kShift too large where their rounding wants that, and 2^kLift
// of it where subnormal numbers are lost: what is lost is then below 2^-27 of the largest one.
constexpr float kLift = kLosesSmall<Element> ? 13.0F : 0.0F;
// In E4M3 the largest ones are 2^6 to 2^8, of at most 448: what is lost is below 2^-16 of these.
constexpr float kFp8Shift = kFnuzCodes ? 5 : 6, kFp8Unshift = kFnuzCodes ? 1.0F / 32 : 1.0F / 64;
constexpr float kShift = kFp8Products ? kFp8Shift : kIsHalf<Element> ? kLift + kHalfShift : 0.0F;
// A row's sum, still 2^kLift too large.
FULMEN_DEVICE float total(float sum) {
  return row_sum(sum) * (kFp8Products ? kFp8Unshift : kIsHalf<Element> ? kHalfUnshift : 1.0F);
}

// Times a difference of what the softmax takes: the exponent of 2.
FULMEN_DEVICE float softmax_scale(const ForwardArguments& a) {
  return kPlainScale ? a.scale : kLog2OfUnit;
}
// A row's maximum, as end_row() and forward/decode_combine.h take it: that of which total() is the
// sum.
FULMEN_DEVICE float row_maximum(const RowState& rows, float scale, int slot) {
  return kNaturalUnits ? rows.reference[slot] - kLift * kLn2 : rows.reference[slot] * scale - kLift;
}

// Scales that differ between a lane's rows; else a float is all of them.
struct RowScales {
  float of_row[kRowsPerLane];
};
FULMEN_DEVICE float scale_of_row(float scale, int /*slot*/) { return scale; }
FULMEN_DEVICE float scale_of_row(const RowScales& scales, int slot) { return scales.of_row[slot]; }

// A lane's own maxima of a tile's scores.
template <int kTiles>
FULMEN_DEVICE void find_own_maxima(const TileRow<kTiles>& score, float (&max)[kRowsPerLane]) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    max[slot] = -kInfinity;
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) max[slot] = larger(max[slot], score[f][e]);
      }
    }
  }
}
// Of the rows, from those of the lanes that share them.
FULMEN_DEVICE void exchange_maxima(float (&max)[kRowsPerLane]) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) max[slot] = row_max(max[slot]);
}
// Returns true if the reference is to follow one of the maxima.
template <class Scale>
FULMEN_DEVICE bool exceeds(const RowState& rows, const Scale& scales,
                           const float (&max)[kRowsPerLane]) {
  bool moves = false;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const float scale = scale_of_row(scales, slot);
    if constexpr (kKeepsShift) {
      moves = moves || fused(max[slot], scale, rows.reference[slot]) > kShift + kSlack;
    } else if constexpr (kNaturalUnits) {
      moves = moves || max[slot] > rows.reference[slot] + kNaturalSlack;
    } else {
      moves = moves || max[slot] * scale > rows.reference[slot] * scale + kSlack;
    }
  }
  return moves;
}
// The rows' maxima of a tile's scores, and whether the reference is to follow one of this lane's.
template <class Scale, int kTiles>
FULMEN_DEVICE bool find_maxima(const RowState& rows, const Scale& scales,
                               const TileRow<kTiles>& score, float (&max)[kRowsPerLane]) {
  find_own_maxima(score, max);
  exchange_maxima(max);
  return exceeds(rows, scales, max);
}

// The references follow the maxima. factor: the online softmax's rescale of the rows' outputs.
template <class Scale>
FULMEN_DEVICE void follow_maxima(RowState& rows, const Scale& scales,
                                 const float (&max)[kRowsPerLane], float (&factor)[kRowsPerLane]) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    if constexpr (kKeepsShift) {
      const float needed = fused(max[slot], -scale_of_row(scales, slot), kShift),
                  shift = -larger(-rows.reference[slot], -needed);
      factor[slot] = exp2(shift - rows.reference[slot]);
      rows.reference[slot] = shift;
      rows.sum[slot] *= factor[slot];
      continue;
    }
    const float moved = larger(rows.reference[slot], max[slot]);
    factor[slot] = exp2((rows.reference[slot] - (moved == -kInfinity ? 0.0F : moved)) *
                        scale_of_row(scales, slot));
    rows.reference[slot] = moved;
    rows.sum[slot] *= factor[slot];
  }
}

// What exponent() takes of a row.
FULMEN_DEVICE float exponent_shift(const RowState& rows, float scale, int slot) {
  if constexpr (kKeepsShift) return rows.reference[slot];
  if constexpr (kNaturalUnits)
    return rows.reference[slot] == -kInfinity ? 0.0F : -rows.reference[slot];
  const float offset = rows.reference[slot] == -kInfinity ? 0.0F : rows.reference[slot] * scale;
  return kShift == 0 ? -offset : kShift - offset;
}

// 2 to these are a row's probabilities.
FULMEN_DEVICE float exponent(float score, float scale, float shift) {
  if constexpr (kNaturalUnits) return (score + shift) * scale + kShift;
  return score * scale + shift;
}
FULMEN_DEVICE Pair exponents(Pair score, float scale, float shift) {
  if constexpr (kNaturalUnits) return multiply_add(add(score, Pair{shift, shift}), scale, kShift);
  return multiply_add(score, scale, shift);
}

// Scores of 16 keys become probabilities.
template <class Scale>
FULMEN_DEVICE void exponentiate_keys(RowState& rows, const Scale& scales,
                                     float (&score)[kElements]) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const float scale = scale_of_row(scales, slot), shift = exponent_shift(rows, scale, slot);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (row_slot(e) != slot) continue;
      score[e] = exp2(exponent(score[e], scale, shift));
      rows.sum[slot] += score[e];
    }
  }
}

// Lanes exchange maxima where the reference is to follow one: a row's exceeds it only where one of
// its lanes' own does. On NVIDIA in any case: there this is not measured.
constexpr bool kExchangesRarely = !kCopiesToLds;

// Scores become probabilities. Calls rescale(factor), with a factor for each slot, if O must be
// rescaled. kFirst: the reference follows in any case.
template <bool kFirst = false, class Scale, int kTiles, class Rescale>
FULMEN_DEVICE void exponentiate(RowState& rows, const Scale& scales, TileRow<kTiles>& score,
                                const Rescale& rescale) {
  constexpr bool kRarely = kExchangesRarely && !kFirst;
  float max[kRowsPerLane];
  find_own_maxima(score, max);
  if constexpr (!kRarely) exchange_maxima(max);
  if (__builtin_expect(any_lane(exceeds(rows, scales, max)), 0)) {
    if constexpr (kRarely) exchange_maxima(max);
    float factor[kRowsPerLane];
    follow_maxima(rows, scales, max, factor);
    FULMEN_INLINED rescale(factor);
  }
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const float scale = scale_of_row(scales, slot), shift = exponent_shift(rows, scale, slot);
    Pair sum{0, 0};
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        if (row_slot(e) != slot) continue;
        const Pair s = exponents(Pair{score[f][e], score[f][e + 1]}, scale, shift);
        const Pair p{exp2(s.x), exp2(s.y)};
        score[f][e] = p.x;
        score[f][e + 1] = p.y;
        sum = add(sum, p);
      }
    }
    rows.sum[slot] += sum.x + sum.y;
  }
}

// Where a row's result goes.
FULMEN_DEVICE Element* out_row(const ForwardArguments& a, Int64 batch, Int64 head, Int64 i) {
  return const_cast<Element*>(at<Element>(a.out, batch, i, head));
}
FULMEN_DEVICE void store_lse(const ForwardArguments& a, Int64 batch, Int64 head, Int64 i,
                             float lse) {
  if (a.lse != nullptr)
    global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, lse);
}

}  // namespace fulmen::kernels
