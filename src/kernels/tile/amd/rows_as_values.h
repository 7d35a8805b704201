// CDNA4: values lie in LDS as rows, which it transposes while they are read.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// The tile is [key][dim], and LDS transposes: runs of 4 keys of dim l % kScoreTile, in the order of
// a lane's scores.
template <int kPitch>
FULMEN_DEVICE ValueOperand lds_rows_as_values(int at, int step, int dims) {
  ValueOperand values;
  // A block of 16 lanes reads 4 rows of 16 dims.
  const int lane = lane_id(),
            key = kScoreTile == 16 ? lane / 4 : lane / kScoreTile * 4 + lane % 16 / 4,
            first_dim = lane % kScoreTile / 16 * 16;
  const int from = at + kValueDepth * step * kPitch + 2 * (kScoreTile * dims + first_dim) +
                   key * kPitch + 8 * (lane % 4);
  constexpr int kRunStep = 256 / kScoreTile;  // keys from a lane's run to its next
#pragma unroll
  for (int n = 0; n < kValueDepth / kRunStep; ++n) {
    const Words<2> keys = lds_load_transposed(from + kRunStep * n * kPitch);
    values.piece[n / 2].word[n % 2 * 2] = keys.word[0];
    values.piece[n / 2].word[n % 2 * 2 + 1] = keys.word[1];
  }
  return values;
}

}  // namespace fulmen::kernels
