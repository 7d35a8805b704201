// AMD: [column][position of row] in LDS, in the order of values.
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

// A tile's diagonal: of a lane's row, in all lanes that share it.
FULMEN_DEVICE float tile_diagonal(const float (&tile)[kElements], int /*slot*/) {
  float own = 0;
#pragma unroll
  for (int e = 0; e < kElements; ++e) own = tile_column(e) == tile_row(0) ? tile[e] : own;
  return row_sum(own);
}

template <class T, int kPitch>
FULMEN_DEVICE void store_transposed(unsigned /*lane*/, int at, int row_tile, int column_tile,
                                    const float (&p)[kElements]) {
  const int row = kScoreTile * (row_tile % kStepTiles) + tile_row(0);
  const int from = at + kScoreTile * column_tile * kPitch +
                   2 * (kValueDepth * (row_tile / kStepTiles) + value_position(row));
#pragma unroll
  for (int e = 0; e < kElements; e += 2) {
    const unsigned two = pack_probabilities<T, false>(p[e], p[e + 1]);
    lds_store(from + tile_column(e) * kPitch, static_cast<unsigned short>(two));
    lds_store(from + tile_column(e + 1) * kPitch, static_cast<unsigned short>(two >> 16U));
  }
}
// The operand of kValueDepth rows, the step-th ones.
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand transposed_operand(unsigned /*lane*/, int at, int step,
                                                    int column_tile) {
  constexpr int kWords = sizeof(ValuePiece) / 4;
  ProbabilityOperand operand;
  const int row =
      at + (kScoreTile * column_tile + lane_id() % 16) * kPitch + 2 * kValueDepth * step;
#pragma unroll
  for (int p = 0; p < kValuePieces; ++p) {
    const auto piece = lds_load<ValuePiece>(row + 2 * value_piece(p));
#pragma unroll
    for (int w = 0; w < kWords; ++w) operand.words.word[kWords * p + w] = piece.word[w];
  }
  return operand;
}

}  // namespace fulmen::kernels
