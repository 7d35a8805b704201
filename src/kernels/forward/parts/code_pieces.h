// Pieces of rows of q, k and v, of which kernels make codes of 8 bits.
#pragma once

#include "tile/rows.h"

namespace fulmen::kernels {

// 8 elements as numbers.
struct Piece {
  Words<4> words;

  FULMEN_DEVICE float number(int e) const {
    return of_bits<Element>(words.word[e / 2] >> (16U * (e % 2)) & 0xFFFFU);
  }
  // The largest |number|, not of NaN.
  FULMEN_DEVICE float largest() const {
    float most = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) most = larger(most, absolute(number(e)));
    return most;
  }
};

// Numbers up to this are as zeros: the factor would be infinite.
constexpr float kNoNumber = 0x1p-118F;

// The largest number of a wave's lanes, in all of them.
FULMEN_DEVICE float largest_of_wave(float most) {
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2) most = larger(most, shuffle_xor(most, mask));
  return most;
}
// The same of a workgroup. LDS: a number a wave, from `at` on.
FULMEN_DEVICE float largest_of_workgroup(float most, int at = 0) {
  most = largest_of_wave(most);
  const int wave = wave_id();
  if (lane_id() == 0) lds_store(at + 4 * wave, most);
  barrier();
  most = 0;
#pragma unroll
  for (int w = 0; w < kWorkgroup / kWaveSize; ++w) most = larger(most, lds_load<float>(at + 4 * w));
  return most;
}

// The piece of a tile of `kDims` dims that is a lane's n-th.
template <int kDims>
struct PiecePlace {
  int row, dim;

  FULMEN_DEVICE static PiecePlace of(int n) {
    constexpr int kPieces = kDims / 8;
    const int piece = n * kWorkgroup + thread_id();
    return {piece / kPieces, piece % kPieces * 8};
  }
};
// 8 elements of a row; nothing where the row is not there.
FULMEN_DEVICE Piece piece_of(const Element* head, Int64 stride, Int64 row, bool there, int dim,
                             int dims) {
  return there ? Piece{load_piece(head + row * stride, dim, dims)} : Piece{};
}

}  // namespace fulmen::kernels
