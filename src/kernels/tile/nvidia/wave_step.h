// NVIDIA: registers suffice to look at all rows before any becomes probabilities. There is one
// branch, and what follows it is one block.
#pragma once

#include "tile/drop.h"
#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

namespace fulmen::kernels {

// True if a tile's exponentials are spread over its second product, one key tile ahead.
constexpr bool kSpreadsExponentials = kSpreadsCopies && kHeadDim > 64 && !kDropout;

// Modifiers and masks of all rows, then their references.
template <bool kMasked>
FULMEN_DEVICE void follow(const RowMap& map, Int64 wave_row, Int64 first_key, ScoreFragment& score,
                          WaveRows& rows) {
  float max[kRowTiles][kRowsPerLane];
  bool moves = false;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    modify_scores<kMasked>(map, wave_row + kScoreTile * t, first_key, score[t]);
    const bool these =
        find_maxima(rows.state[t], rows.codes.softmax_scale(map.arguments, t), score[t], max[t]);
    moves = moves || these;
  }
  if (__builtin_expect(any_lane(moves), 0)) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float factor[kRowsPerLane];
      follow_maxima(rows.state[t], rows.codes.softmax_scale(map.arguments, t), max[t], factor);
      rescale(rows, t, factor);
    }
  }
}

// Scores of key tile f become probabilities, in all rows.
FULMEN_DEVICE void exponentiate_keys(const RowMap& map, int f, ScoreFragment& score,
                                     WaveRows& rows) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
    exponentiate_keys(rows.state[t], rows.codes.softmax_scale(map.arguments, t), score[t][f]);
}

static_assert(kStepTiles == 1, "wave_step: exponentials are one key tile ahead of the product");
template <bool kMasked>
FULMEN_DEVICE void attend(const RowMap& map, Int64 wave_row, const KeyTile& tile,
                          ScoreFragment& score, WaveRows& rows) {
  scale_scores(rows, tile.buffer, score);
  follow<kMasked>(map, wave_row, tile.first_key, score, rows);
#pragma unroll
  for (int f = 0; f < (kSpreadsExponentials ? 1 : kKeyTiles); ++f)
    exponentiate_keys(map, f, score, rows);
  if constexpr (kDropout) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      drop(map, wave_row + kScoreTile * t, tile.first_key, score[t]);
  }
#pragma unroll
  for (int f = 0; f < kKeyTiles; ++f) {
    if (kMasked && kWideHeads && kBand && kScoreTile * f >= tile.attended) break;
    if (kSpreadsExponentials && f + 1 < kKeyTiles) exponentiate_keys(map, f + 1, score, rows);
    ProbabilityOperand p[kRowTiles];
    const auto scales = value_scales<1>(tile.buffer, f);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      scale_probabilities(scales, 0, score[t][f]);
      p[t] = to_operand<Element, true>(score[t][f]);
    }
    multiply_values(rows, tile.buffer, f, p);
  }
}

}  // namespace fulmen::kernels
