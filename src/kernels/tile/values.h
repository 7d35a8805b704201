// Operands of the second product from LDS: 16 keys and 16 dims of a tile of values.
#pragma once

#include "core/matrix.h"
#include "tile/layout.h"

namespace fulmen::kernels {

#if defined(FULMEN_TARGET_SM80)

// The tile is [key][dim]: matrices of keys 0-7 and 8-15 for the first 8 dims, then for the others.
template <int kPitch>
FULMEN_DEVICE ValueOperand lds_value_operand(int at, int tile, int dims, unsigned lane = lane_id()) {
  const int key = 16 * tile + lane % 16, dim = 16 * dims + lane / 16 * 8;
  return {ldmatrix_x4_trans(at + key * kPitch + 2 * dim)};
}

#else

// The tile is [dim][position].
template <int kPitch>
FULMEN_DEVICE ValueOperand lds_value_operand(int at, int tile, int dims) {
  ValueOperand operand;
  static_assert(kPitch == transposed_pitch(kBlockN));
  const int row = at + transposed_row(16 * dims, kBlockN) + value_dim() * kPitch + 2 * 16 * tile;
#pragma unroll
  for (int p = 0; p < kValuePieces; ++p) {
    if constexpr (kPitch % sizeof(operand.piece[0]) == 0) {
      operand.piece[p] = lds_load<ValuePiece>(row + 2 * value_piece(p));
    } else {
      constexpr int kWords = sizeof(operand.piece[0]) / 4;
#pragma unroll
      for (int w = 0; w < kWords; w += 2) {
        const auto two = lds_load<Words<2> >(row + 2 * value_piece(p) + 4 * w);
        operand.piece[p].word[w] = two.word[0];
        operand.piece[p].word[w + 1] = two.word[1];
      }
    }
  }
  return operand;
}

// The row at a position of the transposed tile.
FULMEN_DEVICE int row_at(int position) { return position / kValueKeys * kValueKeys + value_key(position % kValueKeys); }

#endif

}  // namespace fulmen::kernels
