// Tiles of 16 x 16 probabilities, or their gradients, through LDS: from lanes that own rows (queries) to an operand whose rows are
// the columns (keys), for products that sum over queries. On NVIDIA other waves can have the rows' operand back, too.
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

#if defined(FULMEN_TARGET_SM80)

// LDS has [row][column]; ldmatrix turns the matrices. lane: lane_id().
template <int kPitch>
FULMEN_DEVICE void store_words(unsigned lane, int at, int row_tile, int column_tile, const Words<4>& words) {
  const int from = at + 16 * row_tile * kPitch + 32 * column_tile + static_cast<int>(lane / 4 * kPitch + lane % 4 * 4);
  lds_store(from, words.word[0]);
  lds_store(from + 8 * kPitch, words.word[1]);
  lds_store(from + 16, words.word[2]);
  lds_store(from + 8 * kPitch + 16, words.word[3]);
}
template <class T, int kPitch>
FULMEN_DEVICE void store_transposed(unsigned lane, int at, int row_tile, int column_tile, const float (&p)[kElements]) {
  store_words<kPitch>(lane, at, row_tile, column_tile, to_operand<T>(p).words);
}
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand transposed_operand(unsigned lane, int at, int row_tile, int column_tile) {
  const auto from = static_cast<int>((lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16);
  return {ldmatrix_x4_trans(at + 16 * row_tile * kPitch + 32 * column_tile + from)};
}
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand stored_operand(unsigned lane, int at, int row_tile, int column_tile) {
  return {ldmatrix_x4(at + 16 * row_tile * kPitch + 32 * column_tile + static_cast<int>(lane % 16 * kPitch + lane / 16 * 16))};
}

#else

// A tile's diagonal: of a lane's row, in all lanes that share it.
FULMEN_DEVICE float tile_diagonal(const float (&tile)[kElements], int /*slot*/) {
  float own = 0;
#pragma unroll
  for (int e = 0; e < kElements; ++e) own = tile_column(e) == tile_row(0) ? tile[e] : own;
  return row_sum(own);
}

// LDS has [column][position of row], in the order of values.
template <class T, int kPitch>
FULMEN_DEVICE void store_transposed(unsigned /*lane*/, int at, int row_tile, int column_tile, const float (&p)[kElements]) {
  const int from = at + 16 * column_tile * kPitch + 2 * (16 * row_tile + value_position(tile_row(0)));
#pragma unroll
  for (int e = 0; e < kElements; e += 2) {
    const unsigned two = pack_probabilities<T, false>(p[e], p[e + 1]);
    lds_store(from + tile_column(e) * kPitch, static_cast<unsigned short>(two));
    lds_store(from + tile_column(e + 1) * kPitch, static_cast<unsigned short>(two >> 16U));
  }
}
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand transposed_operand(unsigned /*lane*/, int at, int row_tile, int column_tile) {
  constexpr int kWords = sizeof(ValuePiece) / 4;
  ProbabilityOperand operand;
  const int row = at + (16 * column_tile + lane_id() % 16) * kPitch + 2 * 16 * row_tile;
#pragma unroll
  for (int p = 0; p < kValuePieces; ++p) {
    const auto piece = lds_load<ValuePiece>(row + 2 * value_piece(p));
#pragma unroll
    for (int w = 0; w < kWords; ++w) operand.words.word[kWords * p + w] = piece.word[w];
  }
  return operand;
}

#endif

}  // namespace fulmen::kernels
