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

// Scores of the step-th product's keys become probabilities, in all rows.
FULMEN_DEVICE void exponentiate_keys(const RowMap& map, int step, ScoreFragment& score,
                                     WaveRows& rows) {
#pragma unroll
  for (int n = 0; n < kValueStepTiles; ++n) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      exponentiate_keys(rows.state[t], rows.codes.softmax_scale(map.arguments, t),
                        score[t][kValueStepTiles * step + n]);
  }
}
template <int kColumns>
FULMEN_DEVICE StagedProbabilities staged_probabilities(const TileRow<kColumns>& p, int step) {
  if constexpr (kCodeValues) {
    return code_probabilities(p, step);
  } else {
    return to_operand<Element, true>(p[step]);
  }
}

static_assert(kStepTiles == 1, "wave_step: a product of 16 bits has one key tile");
template <bool kMasked>
FULMEN_DEVICE void attend(const RowMap& map, Int64 wave_row, const KeyTile& tile,
                          ScoreFragment& score, WaveRows& rows) {
  scale_scores(rows, tile.buffer, score);
  follow<kMasked>(map, wave_row, tile.first_key, score, rows);
#pragma unroll
  for (int step = 0; step < (kSpreadsExponentials ? 1 : kValueSteps); ++step)
    exponentiate_keys(map, step, score, rows);
  if constexpr (kDropout) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      drop(map, wave_row + kScoreTile * t, tile.first_key, score[t]);
  }
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step) {
    if (kMasked && kWideHeads && kBand && kScoreTile * kValueStepTiles * step >= tile.attended)
      break;
    if (kSpreadsExponentials && step + 1 < kValueSteps)
      exponentiate_keys(map, step + 1, score, rows);
    StagedProbabilities p[kRowTiles];
    const auto scales = value_scales<1>(tile.buffer, step);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if constexpr (!kCodeValues) scale_probabilities(scales, 0, score[t][step]);
      p[t] = staged_probabilities(score[t], step);
    }
    multiply_values(rows, tile.buffer, step, p);
  }
}

}  // namespace fulmen::kernels
