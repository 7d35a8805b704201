// A wave's 16 query rows of a warpgroup: products with tiles of keys and values in LDS, and the
// softmax between them.
#pragma once

#include "tile/fp8.h"
#include "tile/modified_scores.h"
#include "tile/nvidia/dropout_tiles.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// What products multiply, and the depth of one.
using Factor = Either<kFp8Products, E4m3, Element>;
constexpr int kFactorDepth = kFp8Products ? 2 * kWgmmaDepth : kWgmmaDepth;
// By 16: of a tile's keys; by the depth: of q's dims. How many of the first one product P V takes.
constexpr int kKeyTiles = kBlockN / kScoreTile, kHeadDimTiles = kHeadDim / kFactorDepth,
              kOperandTiles = kFactorDepth / kScoreTile;
static_assert(kHeadDim % kFactorDepth == 0 && kKeyTiles % kOperandTiles == 0,
              "products are of whole depths");
// A product of P V gives so many dims, by 16: up to 192 dims.
constexpr int kProducts = kHeadDimV > 192 ? 2 : 1,
              kProductTiles = kHeadDimV / kScoreTile / kProducts;
static_assert(kHeadDim % kScoreTile == 0 && kHeadDimV % kScoreTile == 0,
              "dims are whole tiles of products");
static_assert(kProducts == 1 || kScoreTile * kProductTiles % kPanelColumns == 0,
              "an operand begins with a panel");

struct WaveRows {
  RowState state;
  ProbabilityOperand p[kKeyTiles / kOperandTiles];
  Fragment<kProducts, kProductTiles> out;  // [16, kHeadDimV]
};

// S = Q K^T begins, of a warpgroup's 64 queries among kBlockM rows; or a part of its dims.
template <int kFirst = 0, int kEnd = kHeadDimTiles>
FULMEN_DEVICE void begin_scores(const LdsMatrix& queries, const LdsMatrix& keys,
                                TileRow<kKeyTiles>& score) {
#pragma unroll
  for (int d = kFirst; d < kEnd; ++d) {
    wgmma<Factor, false, false>(score, queries.columns_further(kWgmmaDepth * d, kBlockM),
                                keys.columns_further(kWgmmaDepth * d, kBlockN), d > 0);
  }
  wgmma_commit();
}
// O += P V begins. In 8 bits V is transposed: a row of LDS is a dim, a panel kFp8PanelKeys keys.
FULMEN_DEVICE void begin_outputs(WaveRows& rows, const LdsMatrix& values) {
#pragma unroll
  for (int f = 0; f < kKeyTiles / kOperandTiles; ++f) {
    const int key = kFactorDepth * f;
#pragma unroll
    for (int g = 0; g < kProducts; ++g) {
      const int dim = kScoreTile * kProductTiles * g;
      if constexpr (kFp8Products) {
        wgmma<E4m3, false>(
            rows.out[g], rows.p[f].words,
            values.rows_further(key / kFp8PanelKeys * kHeadDimV + dim).further(key % kFp8PanelKeys),
            true);
      } else {
        wgmma<Element, true>(rows.out[g], rows.p[f].words,
                             values.rows_further(key).columns_further(dim, kBlockN), true);
      }
    }
  }
  wgmma_commit();
}
FULMEN_DEVICE void end_outputs(WaveRows& rows) {
  wgmma_wait<0>();
#pragma unroll
  for (int g = 0; g < kProducts; ++g) wgmma_hold(rows.out[g]);
}

// A tile's scores, or probabilities, times what the rows of quantized keys, or values, have in LDS
// from `at` on. kKeepsZeros: what is 0 stays it beside any factor.
template <bool kKeepsZeros>
FULMEN_DEVICE void multiply_rows(int at, TileRow<kKeyTiles>& tile) {
#pragma unroll
  for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
    for (int e = 0; e < kElements; e += 4) {
      const auto two = lds_load<Words<2> >(at + 4 * (kScoreTile * f + tile_column(e)));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float& x = tile[f][e + n];
        const float y = x * bits_float(two.word[n % 2]);
        x = kKeepsZeros && x == 0 ? 0.0F : y;
      }
    }
  }
}

// Scores become probabilities. Returns true if O must be rescaled by `factor`.
template <bool kMasked, class Bias = BiasInPlace>
FULMEN_DEVICE bool exponentiate_tile(const RowMap& map, Int64 wave_row, RowState& state,
                                     Int64 first_key, const RowBits<kMasked>& row_bits,
                                     TileRow<kKeyTiles>& score, float (&factor)[kRowsPerLane],
                                     const Bias& tile_bias = {}) {
  const float scale = softmax_scale(map.arguments);
  modify_scores<kMasked>(map, wave_row, first_key, row_bits, score, AllKeys{}, tile_bias);
  float max[kRowsPerLane];
  const bool moves = any_lane(find_maxima(state, scale, score, max));
  if (__builtin_expect(moves, 0)) follow_maxima(state, scale, max, factor);
#pragma unroll
  for (int f = 0; f < kKeyTiles; ++f) exponentiate_keys(state, scale, score[f]);
  if constexpr (kDropout) drop_tiles(map, wave_row, first_key, score);
  return moves;
}
FULMEN_DEVICE void rescale(WaveRows& rows, const float (&factor)[kRowsPerLane]) {
#pragma unroll
  for (int g = 0; g < kProducts; ++g) {
#pragma unroll
    for (int d = 0; d < kProductTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) rows.out[g][d][e] *= factor[row_slot(e)];
    }
  }
}
// Computes exponentials while the product P V is in flight, then waits for it and rescales O if the
// maxima moved.
template <bool kMasked, class Bias = BiasInPlace>
FULMEN_DEVICE void exponentiate_and_end_outputs(const RowMap& map, Int64 wave_row, WaveRows& rows,
                                                Int64 first_key, const RowBits<kMasked>& row_bits,
                                                TileRow<kKeyTiles>& score,
                                                const Bias& tile_bias = {}) {
  float factor[kRowsPerLane] = {1, 1};
  const bool moves = exponentiate_tile<kMasked>(map, wave_row, rows.state, first_key, row_bits,
                                                score, factor, tile_bias);
  // A wait each: with one before the branch the compiler puts the exponentials after it.
  if (__builtin_expect(moves, 0)) {
    end_outputs(rows);
    rescale(rows, factor);
  } else {
    end_outputs(rows);
  }
}
// P, as the operand of the next product. In 8 bits a lane's four neighbours are its keys of 16, in
// the order of code_key(): nothing moves between lanes.
FULMEN_DEVICE void keep_probabilities(WaveRows& rows, const TileRow<kKeyTiles>& score) {
#pragma unroll
  for (int f = 0; f < kKeyTiles; ++f) {
    if constexpr (kFp8Products) {
      const auto& p = score[f];
      auto& word = rows.p[f / 2].words.word;
      word[2 * (f % 2)] = pack_e4m3(p[0], p[1], p[4], p[5]);
      word[2 * (f % 2) + 1] = pack_e4m3(p[2], p[3], p[6], p[7]);
    } else {
      rows.p[f] = to_operand<Element, true>(score[f]);
    }
  }
}

// A row's end: what outputs are multiplied with. One of the lanes that share the row stores its
// log-sum-exp.
FULMEN_DEVICE void end_rows(const RowMap& map, Int64 wave_row, const RowState& state,
                            float (&output_factor)[kRowsPerLane]) {
  const ForwardArguments& a = map.arguments;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 row = wave_row + tile_row(slot);
    const RowEnd end = end_row(a, map.head(row), row_maximum(state, softmax_scale(a), slot),
                               total(state.sum[slot]));
    // Outputs of no keys are 0, whatever the scale is.
    const bool scaled = kFp8Products || (kKvNumbers && end.output_factor != 0);
    output_factor[slot] = end.output_factor * (scaled ? a.value_scale : 1.0F);
    if (row < map.end && tile_column(0) == 0)
      store_lse(a, map.batch, map.head(row), map.query(row), end.lse);
  }
}

}  // namespace fulmen::kernels
