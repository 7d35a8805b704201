// How tiles of fp32 are cut into a wave's products, and pieces of their rows.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "tile/fp32/layout.h"

namespace fulmen::kernels {

constexpr int kFloatWaves = kWorkgroup / kWaveSize;
constexpr int kFloatRowTiles = kBlockM / (kScoreTile * kFloatWaves);  // of a wave
constexpr int kFloatColumnTiles = kBlockN / kScoreTile;
static_assert(kBlockM == kFloatRowTiles * kScoreTile * kFloatWaves,
              "fp32: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % kValueDepth == 0, "fp32: tiles of keys are whole operands");

// [kScoreTile * kFloatRowTiles, kBlockN]
using FloatScores = Fragment<kFloatRowTiles, kFloatColumnTiles>;

// kBlockN rows in memory, or fewer at their end.
struct FloatSource {
  static constexpr bool kIsBuffer = true;
  const float* rows;
  Int64 stride;
  int last;  // the last one that is there

  FULMEN_DEVICE static FloatSource of(const float* head, Int64 stride, Int64 first, Int64 end) {
    return {head + first * stride, stride, at_most(end - first, kBlockN) - 1};
  }
  FULMEN_DEVICE bool has(int row) const { return row <= last; }
  FULMEN_DEVICE int clamp(int row) const { return row < last ? row : last; }
  FULMEN_DEVICE const float* row(int n) const { return rows + n * stride; }
};

// An infinity has no low part: the largest number is its high part instead, and the low part, which
// is multiplied with the other operand's high part alone, infinite.
FULMEN_DEVICE float finite(float x) {
  constexpr float kLargest = __builtin_bit_cast(float, 0x7F7FFFFFU);
  return larger(-kLargest, -larger(-x, -kLargest));
}

// Elements [dim, dim + 4) of a row of `dims` elements, zeros beyond its end.
FULMEN_DEVICE Words<4> load_floats(const float* row, int dim, int dims) {
  Words<4> piece{};
  if constexpr (kWholeRows) {
    if (kExactDims || dim < dims) piece = global_load(reinterpret_cast<const Words<4>*>(row + dim));
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (dim + e < dims) piece.word[e] = float_bits(global_load(row + dim + e));
    }
  }
  return piece;
}

// 4 outputs of one row, from dim on.
FULMEN_DEVICE void store_floats(float* row, int dim, int dims, const Words<4>& piece) {
  if constexpr (kWholeRows) {
    if (kExactDims || dim < dims) global_store(reinterpret_cast<Words<4>*>(row + dim), piece);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (dim + e < dims) global_store(row + dim + e, bits_float(piece.word[e]));
    }
  }
}

}  // namespace fulmen::kernels
