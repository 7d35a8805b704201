// Scales of quantized keys and values where products are those of 16 bits: scores are multiplied
// with those of their keys, probabilities with those of their values.
#pragma once

#include "core/matrix.h"
#include "core/stored_rows.h"

namespace fulmen::kernels {

// An element of the lane's first row, with the column of element e: its second row's come two
// later.
static_assert(kRowsPerLane <= 2, "stored_scales: a lane has one row of scores, or two as on sm80");
FULMEN_DEVICE constexpr int same_column(int e) { return e - 2 * row_slot(e); }

// Of a tile's keys: row n's, where it is there.
template <bool kValues>
FULMEN_DEVICE float scale_of_row(const ForwardArguments& a, const StoredHead<kValues>& head,
                                 const TilePlace& tile, int n) {
  if constexpr (kPaged && kTilesInPages) {
    const PagedRow place{uniform(tile.place.page), tile.place.row + static_cast<unsigned>(n)};
    return StoredRow<kValues>::in_page(a, head, place).scale;
  } else {
    return StoredRow<kValues>::of(a, head, tile.key + n).scale;
  }
}

// What a step's scores (kValues: probabilities) are multiplied with: a lane's columns.
// kStaged: from LDS, where they are factor_of_scale().
template <bool kValues, int kTiles, bool kStaged = false>
struct StepScales {
  // The head's scale alone: values' comes to the outputs.
  static constexpr bool kOne = !StoredHead<kValues>::kOfToken && (kValues || !kPaged);
  float of[kOne ? 1 : kTiles][kOne ? 1 : kElements];

  // left: the tile's keys that are there, from its first one on.
  FULMEN_DEVICE static StepScales load(const ForwardArguments& a, const StoredHead<kValues>& head,
                                       const TilePlace& tile, int left) {
    StepScales scales;
    if constexpr (kOne) {
      scales.of[0][0] = head.factor;
    } else {
#pragma unroll
      for (int f = 0; f < kTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (row_slot(e) != 0) continue;
          const int n = kScoreTile * f + tile_column(e);
          scales.of[f][e] = scale_of_row(a, head, tile, n < left ? n : left - 1);
        }
      }
    }
    return scales;
  }
  // The same from LDS, where factor_of_scale() of the tile's rows lie one behind the other. factor:
  // the head's scale.
  FULMEN_DEVICE static StepScales staged(int place, float factor) {
    StepScales scales;
    if constexpr (kOne) {
      scales.of[0][0] = factor;
    } else {
      constexpr int kRun = kColumnRun < 4 ? kColumnRun : 4;
#pragma unroll
      for (int f = 0; f < kTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; e += kRun) {
          if (row_slot(e) != 0) continue;
          const auto run = lds_load<Words<kRun> >(place + 4 * (kScoreTile * f + tile_column(e)));
#pragma unroll
          for (int n = 0; n < kRun; ++n) scales.of[f][e + n] = bits_float(run.word[n]);
        }
      }
    }
    return scales;
  }
  FULMEN_DEVICE float at(int f, int e) const {
    const float scale = kOne ? of[0][0] : of[kOne ? 0 : f][kOne ? 0 : same_column(e)];
    return kStaged && !kOne ? scale : factor_of_scale<kValues>(scale);
  }
};

// Scores of q and k's codes become those of q and k.
template <int kTiles, bool kStaged>
FULMEN_DEVICE void scale_scores(const StepScales<false, kTiles, kStaged>& scales,
                                TileRow<kTiles>& score) {
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) score[f][e] *= scales.at(f, e);
  }
}
// Probabilities of 16 keys, in bf16 alone: fp16's range is not theirs. A masked key's scale may be
// anything.
template <int kTiles, bool kStaged>
FULMEN_DEVICE void scale_probabilities(const StepScales<true, kTiles, kStaged>& scales, int tile,
                                       float (&probability)[kElements]) {
  if constexpr (StepScales<true, kTiles>::kOne) return;
  static_assert(StepScales<true, kTiles>::kOne || !kIsHalf<Element>,
                "quantized: scales of v's tokens go with bf16");
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    float& p = probability[e];
    p = p == 0 ? 0.0F : p * scales.at(tile, e);
  }
}
template <int kTiles, bool kStaged>
FULMEN_DEVICE void scale_probabilities(const StepScales<true, kTiles, kStaged>& scales,
                                       TileRow<kTiles>& probability) {
#pragma unroll
  for (int f = 0; f < kTiles; ++f) scale_probabilities(scales, f, probability[f]);
}
// Times the outputs: the head's scale of v; with scales of tokens: 1.
FULMEN_DEVICE float scale_of_outputs(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
  return finite_or_nan(StoredHead<true>::of(a, batch, kv_head).factor);
}

}  // namespace fulmen::kernels
