// Rows of q, k and v become codes of 8 bits: what the kernels share that write them.
#pragma once

#include "tile/fp8.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// Numbers of 8 bits: what a scale makes of the largest one.
constexpr float kLargestCode = 448;

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
  FULMEN_DEVICE Words<2> codes(float factor) const {
    Words<2> y;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      y.word[w] = pack_e4m3(number(4 * w) * factor, number(4 * w + 1) * factor,
                            number(4 * w + 2) * factor, number(4 * w + 3) * factor);
    }
    return y;
  }
};

// Numbers up to this are as zeros: the factor would be infinite.
constexpr float kNoNumber = 0x1p-118F;
// The scale of numbers up to `most`: a number is its code times the scale. Zeros have any; a scale
// of NaN makes NaN of all that an infinity is among.
FULMEN_DEVICE float scale_of_largest(float most) {
  return most <= kNoNumber ? 1.0F : most < kInfinity ? most * (1.0F / kLargestCode) : kNan;
}
// What numbers are multiplied with before they are rounded.
FULMEN_DEVICE float code_factor(float most) {
  return most <= kNoNumber ? 0.0F : kLargestCode / most;
}

// The largest number of a wave's lanes, in all of them.
FULMEN_DEVICE float largest_of_wave(float most) {
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2) most = larger(most, shuffle_xor(most, mask));
  return most;
}
// The same of a workgroup. LDS: a number a wave, from 0 on.
FULMEN_DEVICE float largest_of_workgroup(float most) {
  most = largest_of_wave(most);
  const int wave = wave_id();
  if (lane_id() == 0) lds_store(4 * wave, most);
  barrier();
  most = 0;
#pragma unroll
  for (int w = 0; w < kWorkgroup / kWaveSize; ++w) most = larger(most, lds_load<float>(4 * w));
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

// kFp8Queries rows of q or k, of a lane: its pieces of them.
class CodedRows {
 public:
  // first: of the view's head, the first one. is_there(row): the others are zeros.
  template <class IsThere>
  FULMEN_DEVICE CodedRows(const View& view, int dims, const Element* first,
                          const IsThere& is_there) {
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) {
      const auto place = PiecePlace<kHeadDim>::of(n);
      pieces_[n] = piece_of(first, view.row, place.row, is_there(place.row), place.dim, dims);
    }
  }
  FULMEN_DEVICE float largest() const {
    float most = 0;
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) most = larger(most, pieces_[n].largest());
    return most;
  }
  // to: the first row's codes; count: of rows that there are.
  FULMEN_DEVICE void store(unsigned char* to, int count, float factor) const {
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) {
      const auto place = PiecePlace<kHeadDim>::of(n);
      if (place.row < count)
        global_store(reinterpret_cast<Words<2>*>(to + place.row * kHeadDim + place.dim),
                     pieces_[n].codes(factor));
    }
  }

 private:
  static constexpr int kPieces = kFp8Queries * kHeadDim / 8,
                       kOfLane = (kPieces + kWorkgroup - 1) / kWorkgroup;
  Piece pieces_[kOfLane];
};

}  // namespace fulmen::kernels
