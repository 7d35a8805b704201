// NVIDIA: values are [key][dim] in LDS; ldmatrix transposes them.
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

// The tile is [key][dim]: matrices of keys 0-7 and 8-15 for the first 8 dims, then for the others.
template <int kPitch>
FULMEN_DEVICE ValueOperand lds_value_operand(int at, int tile, int dims,
                                             unsigned lane = lane_id()) {
  const int key = kValueDepth * tile + lane % 16, dim = kScoreTile * dims + lane / 16 * 8;
  return {ldmatrix_x4_trans(at + key * kPitch + 2 * dim)};
}

}  // namespace fulmen::kernels
