// AMD: values are transposed in LDS, [dim][position of key], so that a lane loads its operand by a
// piece.
#pragma once

#include "algorithm/transposed_rows.h"
#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// The tile is [dim][position].
template <int kPitch>
FULMEN_DEVICE ValueOperand lds_value_operand(int at, int step, int dims) {
  ValueOperand operand;
  static_assert(kPitch == algorithm::transposed_pitch(kBlockN, kValueDepth));
  const int row = at + algorithm::transposed_row(kScoreTile * dims, kBlockN, kValueDepth) +
                  algorithm::transposed_row(value_dim(), kBlockN, kValueDepth) +
                  2 * kValueDepth * step;
  if constexpr (kValuePieces % 2 == 0 && sizeof(ValuePiece) == 8 && kPitch % 16 == 0) {
#pragma unroll
    for (int p = 0; p < kValuePieces; p += 2) {
      const auto two = lds_load<Words<4> >(row + 2 * value_piece(p));
      operand.piece[p] = {{two.word[0], two.word[1]}};
      operand.piece[p + 1] = {{two.word[2], two.word[3]}};
    }
    return operand;
  }
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
FULMEN_DEVICE int row_at(int position) {
  return position / kValueDepth * kValueDepth + value_key(position % kValueDepth);
}

}  // namespace fulmen::kernels
