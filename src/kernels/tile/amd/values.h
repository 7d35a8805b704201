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

// The row at a position of the transposed tile.
FULMEN_DEVICE int row_at(int position) {
  return position / kValueDepth * kValueDepth + value_key(position % kValueDepth);
}

}  // namespace fulmen::kernels
