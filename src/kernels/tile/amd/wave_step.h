// AMD: one row tile after the other becomes probabilities, then all are multiplied.
#pragma once

#include "tile/drop.h"
#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

namespace fulmen::kernels {

template <int kColumns>
FULMEN_DEVICE StagedProbabilities staged_probabilities(const TileRow<kColumns>& p, int step) {
  if constexpr (kCodeValues) {
    return code_probabilities(p, step);
  } else {
    return step_operand<Element, true>(p, step);
  }
}

// Scores become probabilities, the operands of products with values.
template <bool kMasked>
FULMEN_DEVICE void exponentiate_tile(const RowMap& map, Int64 wave_row, const KeyTile& tile,
                                     ScoreFragment& score, WaveRows& rows,
                                     StagedProbabilities (&p)[kValueSteps][kRowTiles]) {
  scale_scores(rows, tile.buffer, score);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    modify_scores<kMasked>(map, wave_row + kScoreTile * t, tile.first_key, score[t]);
    exponentiate(rows.state[t], rows.codes.softmax_scale(map.arguments, t), score[t],
                 [&](const float(&factor)[kRowsPerLane]) { rescale(rows, t, factor); });
    if constexpr (kDropout) drop(map, wave_row + kScoreTile * t, tile.first_key, score[t]);
    scale_probabilities(value_scales<kKeyTiles>(tile.buffer, 0), score[t]);
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step)
      p[step][t] = staged_probabilities(score[t], step);
  }
}

template <bool kMasked>
FULMEN_DEVICE void attend(const RowMap& map, Int64 wave_row, const KeyTile& tile,
                          ScoreFragment& score, WaveRows& rows) {
  StagedProbabilities p[kValueSteps][kRowTiles];
  exponentiate_tile<kMasked>(map, wave_row, tile, score, rows, p);
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step) multiply_values(rows, tile.buffer, step, p[step]);
}

}  // namespace fulmen::kernels
