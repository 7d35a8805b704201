// From tiles of q.k to probabilities, in registers: modifiers, masks and the online softmax of 16 query rows.
#pragma once

#include "matrix.h"
#include "scores.h"

namespace fulmen::kernels {

// Which query and head a row of a tile is. With kPackedRows the query heads of a KV head are neighbouring rows.
struct RowMap {
  const ForwardArguments& arguments;
  Int64 batch, first_head;
  Int64 end;  // rows

  FULMEN_DEVICE Int64 clamp(Int64 row) const { return row < end ? row : end - 1; }
  FULMEN_DEVICE Int64 query(Int64 row) const { return kPackedRows ? row / arguments.group_size : row; }
  FULMEN_DEVICE Int64 head(Int64 row) const { return kPackedRows ? first_head + row % arguments.group_size : first_head; }
};

// The biases of a run of keys that lie side by side in a lane, times log2 e; those from `left` on are not there. Rows of whole
// biases end at a multiple of 8 keys: a run is inside or outside.
template <int kCount>
FULMEN_DEVICE void load_bias(const BiasElement* bias, Int64 left, float (&value)[kCount]) {
  if constexpr (kWholeBias && kCount > 1) {
    if (left <= 0) return;
    constexpr int kWords = kCount * static_cast<int>(sizeof(BiasElement)) / 4;
    constexpr int kStep = kWords < 4 ? kWords : 4;
    unsigned words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; w += kStep) {
      const auto piece = global_load(reinterpret_cast<const Words<kStep>*>(bias) + w / kStep);
#pragma unroll
      for (int n = 0; n < kStep; ++n) words[w + n] = piece.word[n];
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if constexpr (sizeof(BiasElement) == 4) {
        value[n] = kLog2E * bits_float(words[n]);
      } else {
        value[n] = kLog2E * to_float(BiasElement{static_cast<unsigned short>(words[n / 2] >> (16U * (n % 2)))});
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (n < left) value[n] = kLog2E * to_float(global_load(bias + n));
    }
  }
}

// Scale, softcap, bias, ALiBi and masks of 16 rows from first_row on. kMasked: some keys of the tile may not be attended, or be
// beyond the end.
template <bool kMasked, int kTiles>
FULMEN_DEVICE void modify_scores(const RowMap& map, Int64 first_row, Int64 first_key, float (&score)[kTiles][kElements]) {
  if constexpr (kPlainScale && !kMasked) return;
  const ForwardArguments& a = map.arguments;
  const algorithm::Band band = band_of(a);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 row = map.clamp(first_row + tile_row(slot));
    const Int64 i = map.query(row);
    const ScoreRow modifiers = ScoreRow::of(a, map.batch, map.head(row), i);
    const int low = static_cast<int>(algorithm::Band::clamp(band.first(i) - first_key, 0, 16 * kTiles));
    const int high = static_cast<int>(algorithm::Band::clamp(band.last_plus_one(i) - first_key, 0, 16 * kTiles));
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; e += kColumnRun) {
        if (row_slot(e) != slot) continue;
        const int column = 16 * f + tile_column(e);
        float bias[kColumnRun] = {};
        if constexpr (kBias)
          load_bias(modifiers.bias + first_key + column, kMasked ? a.seqlen_k - first_key - column : kColumnRun, bias);
#pragma unroll
        for (int n = 0; n < kColumnRun; ++n) {
          float& s = score[f][e + n];
          const bool attended = !kMasked || (column + n >= low && column + n < high);
          if constexpr (!kPlainScale) s = modifiers.finish(a, s, bias[n], first_key + column + n, attended);
          s = attended ? s : -kInfinity;
        }
      }
    }
  }
}

// 16 rows' reference (of q.k with kPlainScale, else in base-2 units) and the sum of the lane's own probabilities. Probabilities are
// 2^(score - reference): the reference follows the running maximum only when that is more than 2^kSlack away, so that most tiles
// need no rescaling of what was summed before.
constexpr float kSlack = 8.0F;
struct RowState {
  float reference[kRowsPerLane];
  float sum[kRowsPerLane];

  FULMEN_DEVICE void clear() {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      reference[slot] = -kInfinity;
      sum[slot] = 0;
    }
  }
};

FULMEN_DEVICE float softmax_scale(const ForwardArguments& a) { return kPlainScale ? a.scale : 1.0F; }

// Scores become probabilities. Calls rescale(factor) where the rows' outputs so far are to be multiplied, with a factor for each
// slot.
template <int kTiles, class Rescale>
FULMEN_DEVICE void exponentiate(RowState& rows, float scale, float (&score)[kTiles][kElements], const Rescale& rescale) {
  float max[kRowsPerLane];
  bool moves = false;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    float tile_max = -kInfinity;
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) tile_max = larger(tile_max, score[f][e]);
      }
    }
    max[slot] = row_max(tile_max);
    moves = moves || max[slot] * scale > rows.reference[slot] * scale + kSlack;
  }
  if (__builtin_expect(any_lane(moves), 0)) {
    float factor[kRowsPerLane];
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const float moved = larger(rows.reference[slot], max[slot]);
      factor[slot] = exp2((rows.reference[slot] - (moved == -kInfinity ? 0.0F : moved)) * scale);
      rows.reference[slot] = moved;
      rows.sum[slot] *= factor[slot];
    }
    rescale(factor);
  }
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const float offset = rows.reference[slot] == -kInfinity ? 0.0F : rows.reference[slot] * scale;
    Pair sum{0, 0};
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        if (row_slot(e) != slot) continue;
        const Pair s = multiply_add(Pair{score[f][e], score[f][e + 1]}, scale, -offset);
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
FULMEN_DEVICE void store_lse(const ForwardArguments& a, Int64 batch, Int64 head, Int64 i, float lse) {
  if (a.lse != nullptr) global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, lse);
}

}  // namespace fulmen::kernels
