// A wave's query rows in registers: S = Q K^T, the state of their softmax, O += P V.
#pragma once

#include "tile/int8.h"
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
  // kInt8Products:
  CodeRow code[kRowTiles];
  float origin[kElements];  // kCodeOrigin: what a tile's sums begin with
};

FULMEN_DEVICE void clear(WaveRows& rows) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) rows.state[t].clear();
}

// A tile's scores before its products.
FULMEN_DEVICE void begin_scores(const WaveRows& rows, ScoreFragment& score) {
  if constexpr (!kInt8Products) return;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) score[t][f][e] = rows.origin[e];
    }
  }
}

// Scores of codes become those of q and k. Sums of int8 products stay where a scale is all that they
// need: it is the softmax's then.
FULMEN_DEVICE void scale_scores(const WaveRows& rows, int buffer, ScoreFragment& score) {
  if constexpr (kInt8Products && !kPlainScale) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) score[t][f][e] = rows.code[t].score(score[t][f][e]);
      }
    }
  }
  if constexpr (kQuantized) {
    const auto scales =
        StepScales<false, kKeyTiles, true>::staged(scales_at<false>(buffer), rows.key_factor);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) scale_scores(scales, score[t]);
  }
}
// Times a difference of what the softmax takes of row tile t: the exponent of 2.
FULMEN_DEVICE float softmax_scale(const ForwardArguments& a, const WaveRows& rows, int t) {
  return kInt8Products && kPlainScale ? rows.code[t].scale : softmax_scale(a);
}
// A row's maximum, as end_row() takes it.
FULMEN_DEVICE float row_maximum(const ForwardArguments& a, const WaveRows& rows, int t, int slot) {
  if constexpr (kInt8Products && kPlainScale) {
    const float most = rows.state[t].reference[slot] - kCodeOrigin;
    return most * rows.code[t].scale + rows.code[t].start - kLift;
  }
  return row_maximum(rows.state[t], softmax_scale(a), slot);
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
                                   const ProbabilityOperand (&p)[kRowTiles]) {
  const unsigned lane = operand_lane();
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
    const ValueOperand values = value_operand(buffer, step, d, lane);
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
