// Probabilities as factors of dv, in fp16 where subnormal numbers are lost: they are multiplied by
// up to 2^13, so that what is lost is below 2^-27 of a probability of 1, and dv is divided by it.
#pragma once

#include "backward/parts/scores.h"
#include "core/matrix.h"

namespace fulmen::kernels {

constexpr bool kLiftsWeights = kLosesSmall<Element>;

// With dropout weights are up to a.dropout_scale.
FULMEN_DEVICE float weight_lift(const BackwardArguments& a) {
  if constexpr (!kLiftsWeights) return 1.0F;
  return kDropout ? 0x1p13F * reciprocal(a.dropout_scale) : 0x1p13F;
}
FULMEN_DEVICE float undone_lift(const BackwardArguments& a) {
  if constexpr (!kLiftsWeights) return 1.0F;
  return kDropout ? 0x1p-13F * a.dropout_scale : 0x1p-13F;
}

// Multiplies a tile's weights.
FULMEN_DEVICE void lift(float (&weight)[kElements], float by) {
  if constexpr (kLiftsWeights) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) weight[e] *= by;
  }
}

}  // namespace fulmen::kernels
