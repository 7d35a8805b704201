// Keys and values as operands straight from memory, without LDS: for kernels whose waves share little.
#pragma once

#include "tile/rows.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// A lane takes kWidth neighbouring dims of each of its keys; tile t of a group of outputs has every kWidth-th dim, from t on.
// On gfx11 a lane has all 16 keys: 8 dims of each would fill 64 registers.
constexpr int kWidth = kHeadDimV % (8 * kDirectDims) == 0 && kDirectKeys <= 8 ? 8 : kHeadDimV % (4 * kDirectDims) == 0 ? 4 : 2;
constexpr int kGroupDims = kWidth * kDirectDims;
constexpr int kGroups = kHeadDimV / kGroupDims;
static_assert(kHeadDimV % kGroupDims == 0, "direct: head_dim_v is rounded up to a multiple of 32");

struct DirectOutput {
  float value[kGroups][kWidth][kDirectElements];

  FULMEN_DEVICE void rescale(const float (&factor)[kRowsPerLane]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int t = 0; t < kWidth; ++t) {
#pragma unroll
        for (int e = 0; e < kDirectElements; ++e) value[g][t][e] *= factor[row_slot(e)];
      }
    }
  }
};

FULMEN_DEVICE int direct_dim(int group, int e) { return group * kGroupDims + direct_column(e) * kWidth; }

// kWidth elements of a row, from dim on; zeros beyond its end.
FULMEN_DEVICE Words<kWidth / 2> load_values(const Element* row, int dim, int dims) {
  Words<kWidth / 2> words{};
  if constexpr (kWholeRows) {
    if (kExactDims || dim < dims) words = global_load(reinterpret_cast<const Words<kWidth / 2>*>(row + dim));
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (dim + e < dims) words.word[e / 2] |= static_cast<unsigned>(global_load(row + dim + e).bits) << (16U * (e % 2));
    }
  }
  return words;
}

// Keys [begin, end) of a head, at least one. Others repeat the first or the last one: their scores are masked, and a probability of
// 0 must not meet a value that may be NaN because nobody attends it.
struct KeySource {
  const Element* rows;  // of key 0
  Int64 stride;
  Int64 begin, end;
  int dims;

  FULMEN_DEVICE Int64 clamp(Int64 key) const { return key < begin ? begin : key < end ? key : end - 1; }
  FULMEN_DEVICE const Element* row(Int64 key) const { return rows + clamp(key) * stride; }
};

FULMEN_DEVICE RowOperand load_keys(const KeySource& source, Int64 first_key, int dim) {
  RowOperand operand;
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    operand.piece[p] = load_piece(source.row(first_key + piece_row(p)), dim + piece_dim(p), source.dims);
  return operand;
}

// 16 keys' values of one group of dims.
struct DirectValues {
  Words<kWidth / 2> key[kDirectKeys];
};

// What the keep-mask hides from all rows [row_begin, row_end) of the map's first head becomes 0, as it may be NaN.
FULMEN_DEVICE DirectValues load_direct(const KeySource& source, const RowMap& map, Int64 row_begin, Int64 row_end, Int64 first_key,
                                       int group) {
  DirectValues values;
  const int dim = group * kGroupDims + direct_lane() * kWidth;
#pragma unroll
  for (int m = 0; m < kDirectKeys; ++m) {
    const Int64 key = first_key + direct_key(m);
    values.key[m] = load_values(source.row(key), dim, source.dims);
    if constexpr (kKeepMask) {
      bool alive = false;
      const int heads = kPackedRows ? map.arguments.group_size : 1;
      for (int h = 0; h < heads && !alive; ++h) {
        alive = any_row_keeps(map.arguments, map.batch, map.first_head + h, map.query(row_begin), map.query(row_end - 1) + 1,
                              source.clamp(key));
      }
      if (!alive) values.key[m] = {};
    }
  }
  return values;
}

FULMEN_DEVICE void multiply_values(DirectOutput& out, int group, const ProbabilityOperand& p, const DirectValues& values) {
#pragma unroll
  for (int t = 0; t < kWidth; ++t) {
    unsigned pairs[kDirectKeys / 2];
#pragma unroll
    for (int m = 0; m < kDirectKeys / 2; ++m) {
      pairs[m] = halves(values.key[2 * m].word[t / 2], values.key[2 * m + 1].word[t / 2], t % 2 != 0);
    }
    multiply_direct<Element>(out.value[group][t], p, pairs);
  }
}

}  // namespace fulmen::kernels
