// Numbers as the kernels without matrix instructions multiply them: in words of 32 bits.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

// A word is two fp16 numbers, where one instruction multiplies both and adds the products (kPairs),
// else one number in fp32.
constexpr bool kPairs = kConfig.pair_products != 0;
constexpr int kInWord = kPairs ? 2 : 1;  // numbers
// What a lane loads at once.
constexpr int kPieceDims = 8, kPieceWords = kPieceDims / kInWord;

FULMEN_DEVICE float multiply_add(unsigned a, unsigned b, float sum) {
  if constexpr (kPairs) return dot2(a, b, sum);
  return bits_float(a) * bits_float(b) + sum;
}

// Pairs of probabilities are rounded toward zero, and 2^kShift too large to make up for it.
constexpr float kShift = kPairs ? kHalfShift : 0.0F, kUnshift = kPairs ? kHalfUnshift : 1.0F;
struct ProbabilityPair {
  FULMEN_DEVICE static unsigned pack(float a, float b) {
    return pack_probabilities<Half, true>(a, b);
  }
};

using PieceOfWords = unsigned[kPieceWords];

FULMEN_DEVICE unsigned element_bits(float x) { return float_bits(x); }
FULMEN_DEVICE unsigned element_bits(Half x) { return x.bits; }
FULMEN_DEVICE unsigned element_bits(Bfloat16 x) { return x.bits; }

// Elements [dim, dim + 8) of a row of `dims` elements; zeros beyond its end.
template <class T>
FULMEN_DEVICE void load_words(const T* row, int dim, int dims, PieceOfWords& word) {
  constexpr int kVectors = sizeof(T) / 2;
#pragma unroll
  for (unsigned& w : word) w = 0;
  if constexpr (kWholeRows) {
    if (!kExactDims && dim >= dims) return;
    Words<4> raw[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n)
      raw[n] = global_load(reinterpret_cast<const Words<4>*>(row + dim) + n);
#pragma unroll
    for (int w = 0; w < kPieceWords; ++w) {
      if constexpr (kPairs || sizeof(T) == 4) {
        word[w] = raw[w / 4].word[w % 4];
      } else {
        word[w] = float_bits(of_bits<T>(raw[0].word[w / 2] >> (16 * (w % 2))));
      }
    }
  } else {
    // The eight dims of each chunk would stay in registers from tile to tile.
    const int first = recompute(dim);
#pragma unroll
    for (int e = 0; e < kPieceDims; ++e) {
      if (first + e >= dims) continue;
      const unsigned bits = element_bits(global_load(row + first + e));
      if constexpr (kPairs) {
        word[e / 2] |= bits << (16 * (e % 2));
      } else {
        word[e] = float_bits(of_bits<T>(bits));
      }
    }
  }
}

// A tile's rows in memory: those past the last one repeat it. kWholeRows: they are near
// (gpu/launch/specialisation.cpp), so that a distance has room in 32 bits.
template <class T>
struct RowsAt {
  const T* first;  // the same in all lanes
  Int64 stride;
  int last;

  template <bool kClamped>
  FULMEN_DEVICE const T* row(int n) const {
    if constexpr (kClamped) n = n < last ? n : last;
    if constexpr (!kWholeRows) return first + n * stride;
    const unsigned bytes = static_cast<unsigned>(n) * (static_cast<unsigned>(stride) * sizeof(T));
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + bytes);
  }
};

}  // namespace fulmen::kernels
