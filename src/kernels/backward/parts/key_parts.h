// What the splits of queries give of dk and dv, in workspace, for key_sums.h: of each split, where
// they are given, dk [batch, num_kv_heads, seqlen_k, kHeadDim] and dv [.., kHeadDimV], in fp32. dk
// is not yet scaled.
#pragma once

#include "backward/parts/scores.h"

namespace fulmen::kernels {

struct KeyParts {
  float *dk, *dv;

  FULMEN_DEVICE static Int64 rows(const BackwardArguments& a) {
    return Int64{a.batch} * a.num_kv_heads * a.seqlen_k;
  }
  // Floats of a split.
  FULMEN_DEVICE static Int64 stride(const BackwardArguments& a) {
    return rows(a) * ((kGivesDk ? kHeadDim : 0) + (kGivesDv ? kHeadDimV : 0));
  }
  FULMEN_DEVICE static KeyParts of(const BackwardArguments& a, Int64 split) {
    float* const first = a.partial_out + split * stride(a);
    return {first, first + (kGivesDk ? rows(a) * kHeadDim : 0)};
  }
};

}  // namespace fulmen::kernels
