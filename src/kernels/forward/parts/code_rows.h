// Rows of q, k and v become codes of fp8: what the kernels share that write them.
#pragma once

#include "forward/parts/code_pieces.h"
#include "tile/fp8.h"

namespace fulmen::kernels {

// Numbers of 8 bits: what a scale makes of the largest one.
constexpr float kLargestCode = kFnuzCodes ? 224 : 448;

// The codes of 8 numbers.
FULMEN_DEVICE Words<2> codes_of(const Piece& x, float factor) {
  Words<2> y;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    y.word[w] = pack_e4m3(x.number(4 * w) * factor, x.number(4 * w + 1) * factor,
                          x.number(4 * w + 2) * factor, x.number(4 * w + 3) * factor);
  }
  return y;
}

// The scale of numbers up to `most`: a number is its code times the scale. Zeros have any; a scale
// of NaN makes NaN of all that an infinity is among.
FULMEN_DEVICE float scale_of_largest(float most) {
  return most <= kNoNumber ? 1.0F : most < kInfinity ? most * (1.0F / kLargestCode) : kNan;
}
// What numbers are multiplied with before they are rounded.
FULMEN_DEVICE float code_factor(float most) {
  return most <= kNoNumber ? 0.0F : kLargestCode / most;
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
                     codes_of(pieces_[n], factor));
    }
  }

 private:
  static constexpr int kPieces = kFp8Queries * kHeadDim / 8,
                       kOfLane = (kPieces + kWorkgroup - 1) / kWorkgroup;
  Piece pieces_[kOfLane];
};

}  // namespace fulmen::kernels
