// A wave's query rows in registers: S = Q K^T, the state of their softmax, O += P V.
#pragma once

#include "tile/row_codes.h"
#include "tile/softmax.h"
#include "tile/stage.h"

namespace fulmen::kernels {

using ScoreFragment = Fragment<kRowTiles, kKeyTiles>;   // [kScoreTile * kRowTiles, kBlockN]
using OutputFragment = Fragment<kRowTiles, kDimTiles>;  // [kScoreTile * kRowTiles, kHeadDimV]

struct WaveRows {
  RowState state[kRowTiles];
  OutputFragment out;
  StagedRows queries[kRowTiles][kQueryMmaSteps > 0 ? kQueryMmaSteps : 1];
  float key_factor;  // kQuantized: the head's scale of k, and q's
  RowCodes codes;    // kCodeKeys
};

FULMEN_DEVICE void clear(WaveRows& rows) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) rows.state[t].clear();
}

// Scores of codes become those of q and k.
FULMEN_DEVICE void scale_scores(const WaveRows& rows, int buffer, ScoreFragment& score) {
  rows.codes.finish(score);
  if constexpr (kQuantized) {
    const auto scales =
        StepScales<false, kKeyTiles, true>::staged(scales_at<false>(buffer), rows.key_factor);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) scale_scores(scales, score[t]);
  }
}
// Those of quantized values of kTiles key tiles, from tile `first` of a buffer on.
template <int kTiles>
FULMEN_DEVICE StepScales<true, kTiles, true> value_scales(int buffer, int first) {
  return StepScales<true, kTiles, true>::staged(scales_at<true>(buffer) + 4 * kScoreTile * first,
                                                1.0F);
}

FULMEN_DEVICE void rescale(WaveRows& rows, int t, const float (&factor)[kRowsPerLane]) {
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) rows.out[t][d][e] *= factor[row_slot(e)];
  }
}

// O += P V for kValueDepth keys of a buffer, the step-th ones.
FULMEN_DEVICE void multiply_values(WaveRows& rows, int buffer, int step,
                                   const StagedProbabilities (&p)[kRowTiles]) {
  const unsigned lane = operand_lane();
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
    const auto values = value_operand(buffer, step, d, lane);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.out[t][d], p[t], values);
    if (kTightRegisters && d % kTightSteps == kTightSteps - 1) schedule_fence();
  }
}

// A tile of keys that a step takes.
struct KeyTile {
  Int64 first_key;
  int buffer;
  int attended = kBlockN;  // where masked, values from this key on may be left out
};

}  // namespace fulmen::kernels
