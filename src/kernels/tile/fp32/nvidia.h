// NVIDIA: tiles are rows of fp32 in LDS, which cp.async copies. What a wave reads becomes two parts
// of tf32: x = high + low, high the first 11 significant bits, low exact but for its last two bits,
// which the instruction ignores. Both are cut off, not rounded: their signs are x's, so that no
// product of parts overflows to the other infinity, and the largest number stays finite.
//   q k = high high + high low + low high       what is left out is below 2^-20 of the product
#pragma once

#include "tile/fp32/tiles.h"
#include "tile/nvidia/swizzle.h"

namespace fulmen::kernels {

template <int kDims>
using FloatRowsInLds = SwizzledRows<2 * kDims>;  // in units of 16 bits
constexpr int kFloatMmaK = 8;                    // dims, or keys, of an instruction
constexpr int kGroupDims = 32;                   // of values: a lane reads 4 neighbours of a key
static_assert(kHeadDim % 32 == 0 && kHeadDimV % kGroupDims == 0, "fp32: rows are whole operands");

// Infinities need a look at each element, which parts in registers have no time for: rows that
// became NaN are computed again.
constexpr bool kGuardsAlways = false;

template <int kWords>
struct TwoParts {
  Words<kWords> high, low;
};
template <bool kGuarded, int kWords>
FULMEN_DEVICE TwoParts<kWords> split(const Words<kWords>& x) {
  TwoParts<kWords> parts;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const float first = kGuarded ? finite(bits_float(x.word[w])) : bits_float(x.word[w]);
    parts.high.word[w] = float_bits(first) & 0xFFFFE000U;
    parts.low.word[w] = float_bits(bits_float(x.word[w]) - bits_float(parts.high.word[w]));
  }
  return parts;
}

// Of 16 rows and 8 columns. The two small products have sums of their own, or are added first.
FULMEN_DEVICE void multiply_parts(float (&small)[4], float (&sum)[4], const TwoParts<4>& a,
                                  const Words<2>& high, const Words<2>& low) {
  mma_f32_16x8x8_tf32(small, a.high, low);
  mma_f32_16x8x8_tf32(small, a.low, high);
  mma_f32_16x8x8_tf32(sum, a.high, high);
}

// Sums of [16 kFloatRowTiles, kDims]. Column j of product n of a group is dim 4 j + n: a lane's
// sums of a row are 8 neighbours.
template <int kDims>
struct FloatSums {
  static constexpr int kGroups = kDims / kGroupDims;
  float sum[kFloatRowTiles][kGroups][4][4];

  // Calls what(x, slot) for the lane's sums of row tile t.
  template <class What>
  FULMEN_DEVICE void for_each(int t, const What& what) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) what(sum[t][g][n][e], e / 2);
      }
    }
  }
  FULMEN_DEVICE void store(float* row, int dims, int t, int slot, float factor) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Words<4> piece;
#pragma unroll
        for (int n = 0; n < 4; ++n) piece.word[n] = float_bits(sum[t][g][n][2 * slot + j] * factor);
        store_floats(row, kGroupDims * g + 8 * (lane_id() % 4) + 4 * j, dims, piece);
      }
    }
  }
};

// A wave's rows of the first operand: where they begin in LDS.
template <int kDims>
struct HeldRows {
  int at;
};

// product = rows . columns^T of 16 kColumns columns. The instruction cuts its sums off, too: the
// more are added to one, the more is lost, always to the same side. Small products have sums of
// their own, on which that does not show.
template <bool kGuarded, int kDims, int kColumns>
FULMEN_DEVICE void multiply_columns(const HeldRows<kDims>& rows, int columns_at,
                                    Fragment<kFloatRowTiles, kColumns>& product) {
  using Rows = FloatRowsInLds<kDims>;
  const unsigned lane = lane_id();
  float sum[kFloatRowTiles][kColumns][2][4] = {}, small[kFloatRowTiles][kColumns][2][4] = {};
  // 64 dims at a time: the code is long.
#pragma unroll 2
  for (int line = 0; line < 4 * kDims; line += 128) {
#pragma unroll
    for (int d = 0; d < 32 / kFloatMmaK; ++d) {
      TwoParts<4> row[kFloatRowTiles];
#pragma unroll
      for (int t = 0; t < kFloatRowTiles; ++t)
        row[t] = split<kGuarded>(Rows::queries(lane, rows.at + line, kScoreTile * t, d).words);
#pragma unroll
      for (int f = 0; f < kColumns; ++f) {
        const TwoParts<4> column =
            split<kGuarded>(Rows::keys(lane, columns_at + line, kScoreTile * f, d).words);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Words<2> high{{column.high.word[2 * half], column.high.word[2 * half + 1]}},
              low{{column.low.word[2 * half], column.low.word[2 * half + 1]}};
#pragma unroll
          for (int t = 0; t < kFloatRowTiles; ++t)
            multiply_parts(small[t][f][half], sum[t][f][half], row[t], high, low);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
    for (int f = 0; f < kColumns; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        product[t][f][e] = sum[t][f][e / 4][e % 4] + small[t][f][e / 4][e % 4];
    }
  }
}

// sums += weights values, of kBlockN rows of values. A tile's sums begin at 0 and are added by
// ordinary additions, which round: sums of everything would lose bits at each product. Of 8 keys a
// lane has weights of two neighbours: these are the instruction's k = c and c + 4.
template <bool kGuarded, int kDims>
FULMEN_DEVICE void multiply_values(FloatSums<kDims>& sums, int values_at,
                                   const FloatScores& weights) {
  using Rows = FloatRowsInLds<kDims>;
  const int lane = lane_id(), column = lane / 4, key = 2 * (lane % 4);
  const int even = values_at + Rows::place(key, 16 * column),
            odd = values_at + Rows::place(key + 1, 16 * column);
#pragma unroll
  for (int g = 0; g < kDims / kGroupDims; ++g) {
    float sum[kFloatRowTiles][4][4] = {};
#pragma unroll
    for (int step = 0; step < kBlockN / kFloatMmaK; ++step) {
      const int at = kFloatMmaK * step * Rows::kPitch + 4 * kGroupDims * g;
      const TwoParts<4> first = split<kGuarded>(lds_load<Words<4>>(even + at)),
                        second = split<kGuarded>(lds_load<Words<4>>(odd + at));
#pragma unroll
      for (int t = 0; t < kFloatRowTiles; ++t) {
        const float(&of)[kElements] = weights[t][step / 2];
        const int e = 4 * (step % 2);
        const TwoParts<4> weight =
            split<false>(Words<4>{{float_bits(of[e]), float_bits(of[e + 2]), float_bits(of[e + 1]),
                                   float_bits(of[e + 3])}});
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          multiply_parts(sum[t][n], sum[t][n], weight,
                         Words<2>{{first.high.word[n], second.high.word[n]}},
                         Words<2>{{first.low.word[n], second.low.word[n]}});
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.sum[t][g][n][e] += sum[t][n][e];
      }
    }
  }
}

// 8 neighbouring lanes copy 128 bytes of a row at a time.
constexpr int kCopiedFloatRows = kWorkgroup / 8;
static_assert(kBlockN % kCopiedFloatRows == 0 && kBlockM % kCopiedFloatRows == 0 &&
                  kCopiedFloatRows % 8 == 0,
              "fp32: all lanes copy");

// kCount rows to LDS at `at`. row(n): where row n lies; valid(n): false for rows of zeros.
template <int kCount, int kDims, class Row, class Valid>
FULMEN_DEVICE void copy_float_rows(int at, int dims, const Row& row_at, const Valid& valid) {
#pragma unroll
  for (int n = 0; n < kCount; n += kCopiedFloatRows) {
    const int row = n + thread_id() / 8;
    const float* from = row_at(row);
    const bool there = valid(row);
#pragma unroll
    for (int dim = 0; dim < kDims; dim += 32) {
      const int mine = dim + thread_id() % 8 * 4;
      const int to = at + FloatRowsInLds<kDims>::place(row, 4 * mine);
      if constexpr (kWholeRows) {
        copy_async_16(to, from + mine, there && (kExactDims || mine < dims));
      } else {
        lds_store(to, there ? load_floats(from, mine, dims) : Words<4>{});
      }
    }
  }
}

// A tile of kBlockN rows in flight to LDS; fetches end with commit_floats().
template <int kDims, bool kAsRows, bool kAsValues>
class FloatTile {
 public:
  // kChecked: rows that `valid` says no to become 0.
  template <bool kChecked, class Source, class Valid>
  FULMEN_DEVICE void fetch(const Source& rows, int dims, int at, const Valid& valid) {
    copy_float_rows<kBlockN, kDims>(
        at, dims, [&](int n) { return rows.row(rows.clamp(n)); },
        [&](int n) { return !kChecked || valid(rows.clamp(n)); });
  }
  FULMEN_DEVICE void publish(int /*at*/) const {}
};
FULMEN_DEVICE void commit_floats() {
  if constexpr (kWholeRows) copy_commit();
}
FULMEN_DEVICE void floats_arrived() {
  if constexpr (kWholeRows) copy_wait<0>();
}

// The workgroup's kBlockM rows to LDS at `at`: what a wave holds of them.
template <int kDims, class Row>
FULMEN_DEVICE HeldRows<kDims> hold_rows(int at, int first_row, int dims, const Row& row_at) {
  copy_float_rows<kBlockM, kDims>(at, dims, row_at, [](int) { return true; });
  commit_floats();
  return {at + first_row * FloatRowsInLds<kDims>::kPitch};
}

}  // namespace fulmen::kernels
