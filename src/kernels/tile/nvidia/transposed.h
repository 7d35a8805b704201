// NVIDIA: [row][column] in LDS, which ldmatrix transposes. Other waves can load the rows' operand,
// too.
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

// lane: lane_id().
template <int kPitch>
FULMEN_DEVICE void store_words(unsigned lane, int at, int row_tile, int column_tile,
                               const Words<4>& words) {
  const int from = at + kScoreTile * row_tile * kPitch + 32 * column_tile +
                   static_cast<int>(lane / 4 * kPitch + lane % 4 * 4);
  lds_store(from, words.word[0]);
  lds_store(from + 8 * kPitch, words.word[1]);
  lds_store(from + 16, words.word[2]);
  lds_store(from + 8 * kPitch + 16, words.word[3]);
}
template <class T, int kPitch>
FULMEN_DEVICE void store_transposed(unsigned lane, int at, int row_tile, int column_tile,
                                    const float (&p)[kElements]) {
  store_words<kPitch>(lane, at, row_tile, column_tile, to_operand<T>(p).words);
}
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand transposed_operand(unsigned lane, int at, int row_tile,
                                                    int column_tile) {
  const auto from = static_cast<int>((lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16);
  return {ldmatrix_x4_trans(at + kScoreTile * row_tile * kPitch + 32 * column_tile + from)};
}
template <int kPitch>
FULMEN_DEVICE ProbabilityOperand stored_operand(unsigned lane, int at, int row_tile,
                                                int column_tile) {
  return {ldmatrix_x4(at + kScoreTile * row_tile * kPitch + 32 * column_tile +
                      static_cast<int>(lane % 16 * kPitch + lane / 16 * 16))};
}

}  // namespace fulmen::kernels
