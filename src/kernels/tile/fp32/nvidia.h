// NVIDIA: tiles are rows of fp32 in LDS, which cp.async copies. What a wave reads becomes two parts
// of tf32: x = high + low, high the first 11 significant bits, low exact but for its last two bits,
// which the instruction ignores. Both are cut off, not rounded: their signs are x's, so that no
// product of parts overflows to the other infinity, and the largest number stays finite.
//   q k = high high + high low + low high       what is left out is below 2^-20 of the product
#pragma once

#include "tile/fp32/tiles.h"
#include "tile/kept_keys.h"
#include "tile/nvidia/swizzle.h"
#include "tile/softmax.h"
#include "tile/sources.h"

namespace fulmen::kernels {

using KeyRows = SwizzledRows<2 * kHeadDim>;  // in units of 16 bits
using ValueRows = SwizzledRows<2 * kHeadDimV>;
constexpr int kFloatMmaK = 8;   // dims, or keys, of an instruction
constexpr int kGroupDims = 32;  // of V: a lane reads 4 neighbours of a key
constexpr int kDimGroups = kHeadDimV / kGroupDims;
static_assert(kHeadDim % 32 == 0 && kHeadDimV % kGroupDims == 0, "fp32: rows are whole operands");

// The next tile is in flight while one is computed.
constexpr bool kFetchesEarly = kBuffers == 2;
// Infinities need a look at each element, which parts in registers have no time for: rows that
// became NaN are computed again.
constexpr bool kGuardsAlways = false;

struct FloatRows {
  RowState state[kRowTiles];
  // Column j of tile t of a group is dim 4 j + t: a lane's outputs of a row are 8 neighbours.
  float out[kRowTiles][kDimGroups][4][4];

  FULMEN_DEVICE void rescale(int t, const float (&factor)[kRowsPerLane]) {
#pragma unroll
    for (int g = 0; g < kDimGroups; ++g) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[t][g][n][e] *= factor[e / 2];
      }
    }
  }
  FULMEN_DEVICE bool has_nan() const {
    bool found = false;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot)
        found = found || state[t].sum[slot] != state[t].sum[slot];
#pragma unroll
      for (int g = 0; g < kDimGroups; ++g) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) found = found || out[t][g][n][e] != out[t][g][n][e];
        }
      }
    }
    return found;
  }
  FULMEN_DEVICE void store(float* row, int dims, int t, int slot, float factor) const {
#pragma unroll
    for (int g = 0; g < kDimGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Words<4> piece;
#pragma unroll
        for (int n = 0; n < 4; ++n) piece.word[n] = float_bits(out[t][g][n][2 * slot + j] * factor);
        store_floats(row, kGroupDims * g + 8 * (lane_id() % 4) + 4 * j, dims, piece);
      }
    }
  }
};

template <int kWords>
struct TwoParts {
  Words<kWords> high, low;
};
template <bool kGuarded, int kWords>
FULMEN_DEVICE TwoParts<kWords> split(const Words<kWords>& x) {
  TwoParts<kWords> parts;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    float high = bits_float(x.word[w] & 0xFFFFE000U);
    if constexpr (kGuarded) high = bits_float(float_bits(finite(high)) & 0xFFFFE000U);
    parts.high.word[w] = float_bits(high);
    parts.low.word[w] = float_bits(bits_float(x.word[w]) - high);
  }
  return parts;
}

// Of 16 rows and 8 columns. The two small products have sums of their own, or are added first.
FULMEN_DEVICE void multiply_parts(float (&small)[4], float (&sum)[4], const TwoParts<4>& a,
                                  const TwoParts<4>& b, int half) {
  const Words<2> high{{b.high.word[2 * half], b.high.word[2 * half + 1]}};
  mma_f32_16x8x8_tf32(small, a.high, Words<2>{{b.low.word[2 * half], b.low.word[2 * half + 1]}});
  mma_f32_16x8x8_tf32(small, a.low, high);
  mma_f32_16x8x8_tf32(sum, a.high, high);
}

// S = Q K^T. The instruction cuts its sums off, too: the more are added to one, the more is lost,
// always to the same side. Small products have sums of their own, on which that does not show.
template <bool kGuarded>
FULMEN_DEVICE void multiply_keys(const FloatRows& /*rows*/, int first_row, int buffer,
                                 ScoreFragment& score) {
  const unsigned lane = lane_id();
  float sum[kRowTiles][kKeyTiles][2][4] = {}, small[kRowTiles][kKeyTiles][2][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim / kFloatMmaK; ++d) {
    TwoParts<4> query[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      query[t] = split<kGuarded>(
          KeyRows::queries(lane, kLayout.queries_at, first_row + kScoreTile * t, d).words);
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      const TwoParts<4> keys =
          split<kGuarded>(KeyRows::keys(lane, keys_at(buffer), kScoreTile * f, d).words);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply_parts(small[t][f][half], sum[t][f][half], query[t], keys, half);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        score[t][f][e] = sum[t][f][e / 4][e % 4] + small[t][f][e / 4][e % 4];
    }
  }
}

// O += P V. A tile's sums begin at 0 and are added to O by ordinary additions, which round: O would
// lose bits at each of as many products as there are keys. Of 8 keys a lane has P of two
// neighbours: these are the instruction's k = c and c + 4.
template <bool kGuarded>
FULMEN_DEVICE void multiply_values(FloatRows& rows, int buffer, const ScoreFragment& p) {
  const int lane = lane_id(), column = lane / 4, key = 2 * (lane % 4);
  const int even = values_at(buffer) + ValueRows::place(key, 16 * column),
            odd = values_at(buffer) + ValueRows::place(key + 1, 16 * column);
#pragma unroll
  for (int g = 0; g < kDimGroups; ++g) {
    float sum[kRowTiles][4][4] = {};
#pragma unroll
    for (int step = 0; step < kBlockN / kFloatMmaK; ++step) {
      const int at = kFloatMmaK * step * ValueRows::kPitch + 4 * kGroupDims * g;
      const TwoParts<4> first = split<kGuarded>(lds_load<Words<4>>(even + at)),
                        second = split<kGuarded>(lds_load<Words<4>>(odd + at));
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const float(&of)[kElements] = p[t][step / 2];
        const int e = 4 * (step % 2);
        const TwoParts<4> weights =
            split<false>(Words<4>{{float_bits(of[e]), float_bits(of[e + 2]), float_bits(of[e + 1]),
                                   float_bits(of[e + 3])}});
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const TwoParts<4> values{{{first.high.word[n], second.high.word[n]}},
                                   {{first.low.word[n], second.low.word[n]}}};
          multiply_parts(sum[t][n], sum[t][n], weights, values, 0);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) rows.out[t][g][n][e] += sum[t][n][e];
      }
    }
  }
}

// 8 neighbouring lanes copy 128 bytes of a row at a time.
constexpr int kCopiedRows = kWorkgroup / 8;
static_assert(kBlockN % kCopiedRows == 0 && kBlockM % kCopiedRows == 0 && kCopiedRows % 8 == 0,
              "fp32: all lanes copy");

class FloatStage {
 public:
  FULMEN_DEVICE explicit FloatStage(const StageSource& source) : source_(source) {}
  // Begins to copy Q to LDS. It precedes the first fetch().
  FULMEN_DEVICE static void fetch_queries(const QuerySource& source, FloatRows& /*rows*/) {
#pragma unroll
    for (int n = 0; n < kBlockM; n += kCopiedRows) {
      const float* from = source.row(n + copied_row());
      copy_row<kHeadDim>(kLayout.queries_at, n + copied_row(), from, source.dims, true);
    }
    if constexpr (kWholeRows) copy_commit();
  }
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int buffer) {
    first_key_ = first_key;
    const ForwardArguments& a = source_.arguments;
    if constexpr (kWholeRows) {
      copy<kClamped, false, kHeadDim>(a.head_dim, keys_at(buffer));
      copy<kClamped, true, kHeadDimV>(a.head_dim_v, values_at(buffer));
      copy_commit();
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
    const ForwardArguments& a = source_.arguments;
    if constexpr (kWholeRows) {
      copy_wait<0>();
    } else {
      copy<true, false, kHeadDim>(a.head_dim, keys_at(buffer));
      copy<true, true, kHeadDimV>(a.head_dim_v, values_at(buffer));
    }
  }

 private:
  FULMEN_DEVICE static int copied_row() { return thread_id() / 8; }
  template <int kDims>
  FULMEN_DEVICE static void copy_row(int at, int row, const float* from, int dims, bool valid) {
#pragma unroll
    for (int dim = 0; dim < kDims; dim += 32) {
      const int mine = dim + thread_id() % 8 * 4;
      const int to = at + SwizzledRows<2 * kDims>::place(row, 4 * mine);
      if constexpr (kWholeRows) {
        copy_async_16(to, from + mine, valid && (kExactDims || mine < dims));
      } else {
        lds_store(to, valid ? load_floats(from, mine, dims) : Words<4>{});
      }
    }
  }
  template <bool kClamped, bool kValues, int kDims>
  FULMEN_DEVICE void copy(int dims, int at) const {
    const auto rows = TileRows<kValues>::of(source_.arguments, source_, first_key_);
#pragma unroll
    for (int n = 0; n < kBlockN; n += kCopiedRows) {
      const int row = n + copied_row(), from = kClamped ? rows.clamp(row) : row;
      const bool valid =
          !(kMayHide<kClamped> && kValues) || source_.alive(source_.arguments, first_key_ + from);
      copy_row<kDims>(at, row, rows.row(from), dims, valid);
    }
  }

  const StageSource& source_;
  Int64 first_key_ = 0;
};

}  // namespace fulmen::kernels
