// dbias of fp32 alone, by matrix instructions of narrower numbers, as exact as fp32: operands are
// sums of parts (tile/fp32). As bias_gradient.h: a workgroup owns a tile of dbias, [kBlockM
// queries, kBlockN keys] of one head, and goes over a part of its terms.
//
//   bias[kBlockM, kBlockN]   registers, read once where all terms have the same
//   for each term:           k, v [kBlockN, d] of the next one in flight; q, dout [kBlockM, d] too
//                            (NVIDIA), or from memory to registers as parts (AMD)
//     S = q k^T, D = dout v^T - delta      of 16 keys at a time
//     dbias += P D           registers
//
// NVIDIA: a sum that became NaN is computed again, with a look at infinities.
#include "backward/parts/bias_loop.h"
#include "tile/fp32/products.h"

namespace fulmen::kernels {

constexpr BiasGradientFp32Layout kFloatTerm =
    BiasGradientFp32Layout::of(kTransposedDepth, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers);
static_assert(kFloatTerm.total == kLdsBytes,
              "bias_gradient_fp32: the host reserves the LDS that the tiles need");

// A wave's rows.
struct FloatTermRows {
  HeldRows<kHeadDim> queries;
  HeldRows<kHeadDimV> dout;

  // NVIDIA: copies the workgroup's to LDS.
  FULMEN_DEVICE static FloatTermRows hold(const BackwardArguments& a, const TermRowsInMemory& from,
                                          Int64 row, int buffer) {
    const int at = buffer * kFloatTerm.buffer_bytes;
    const int last = at_most(a.seqlen_q - row, kBlockM) - 1,
              first_row = wave_id() * kRowTiles * kScoreTile;
    // Rows past the end repeat the last one.
    const auto clamp = [&](int n) { return n < last ? n : last; };
    return {hold_rows<kHeadDim>(at + kFloatTerm.queries_at, first_row, a.head_dim,
                                [&](int n) { return from.queries + clamp(n) * a.q.row; }),
            hold_rows<kHeadDimV>(at + kFloatTerm.dout_at, first_row, a.head_dim_v,
                                 [&](int n) { return from.dout + clamp(n) * a.dout.row; })};
  }
  // NVIDIA: those that were copied.
  FULMEN_DEVICE static FloatTermRows copied(int buffer) {
    const int at = buffer * kFloatTerm.buffer_bytes, first_row = wave_id() * kRowTiles * kScoreTile;
    FloatTermRows rows;
    rows.queries.at = at + kFloatTerm.queries_at + first_row * kFloatTerm.first.row_pitch;
    rows.dout.at = at + kFloatTerm.dout_at + first_row * kFloatTerm.second.row_pitch;
    return rows;
  }
};

// The tiles of a term in flight to LDS.
class FloatTermTiles {
 public:
  // row: the first query.
  FULMEN_DEVICE void fetch(const BackwardArguments& a, const TermRowsInMemory& from, Int64 row,
                           Int64 first_column, int buffer) {
    const int at = buffer * kFloatTerm.buffer_bytes;
    const Int64 keys = a.seqlen_k - first_column;
    const auto any = [](int) { return true; };
    keys_.template fetch<false>(FloatSource::of(from.keys, a.k.row, 0, keys), a.head_dim, at, any);
    values_.template fetch<false>(FloatSource::of(from.values, a.v.row, 0, keys), a.head_dim_v,
                                  at + kFloatTerm.values_at, any);
    if constexpr (kCopiesToLds) FloatTermRows::hold(a, from, row, buffer);
    commit_floats();
  }
  FULMEN_DEVICE void publish(int buffer) const {
    const int at = buffer * kFloatTerm.buffer_bytes;
    keys_.publish(at);
    values_.publish(at + kFloatTerm.values_at);
    floats_arrived();
  }

 private:
  FloatTile<kHeadDim, true, false> keys_;
  FloatTile<kHeadDimV, true, false> values_;
};

// S and D of a term. kGuarded: infinities are looked for.
template <bool kGuarded>
struct FloatProducts {
  using Tiles = FloatTermTiles;
  static constexpr bool kPlain = !kRunsAgain<kGuarded>;
  FloatTermRows rows;
  int at;  // the term's buffer

  FULMEN_DEVICE static FloatProducts of(const BackwardArguments& a, const TermWalk& walk,
                                        int buffer) {
    if constexpr (kCopiesToLds)
      return {FloatTermRows::copied(buffer), buffer * kFloatTerm.buffer_bytes};
    return {FloatTermRows::hold(a, walk.rows, walk.term.row, buffer),
            buffer * kFloatTerm.buffer_bytes};
  }
  template <bool kMinusDelta, class Body>
  FULMEN_DEVICE void for_each(const TermStatistics& numbers, const Body& body) const {
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      Fragment<kRowTiles, 1> scores, gradients;
      multiply_columns<kGuarded>(rows.queries, at + kScoreTile * f * kFloatTerm.first.row_pitch,
                                 scores);
      multiply_columns<kGuarded>(
          rows.dout, at + kFloatTerm.values_at + kScoreTile * f * kFloatTerm.second.row_pitch,
          gradients);
      TermScores score, gradient;
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          score[t][e] = scores[t][0][e];
          gradient[t][e] = gradients[t][0][e];
          if constexpr (kMinusDelta) gradient[t][e] -= numbers.row[t][row_slot(e)].delta;
        }
      }
      FULMEN_INLINED body(f, score, gradient);
    }
  }
};

FULMEN_DEVICE bool became_nan(const BiasTiles& sum) {
  bool found = false;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) found = found || sum[t][f][e] != sum[t][f][e];
    }
  }
  return found;
}

FULMEN_DEVICE void bias_gradient_fp32(const BackwardArguments& call) {
  BiasTiles sum = {};
  add_terms<FloatProducts<kGuardsAlways>>(call, sum);
  if constexpr (!kGuardsAlways) {
    if (any_wave(became_nan(sum))) {
#pragma unroll
      for (auto& rows : sum) {
#pragma unroll
        for (auto& tile : rows) {
#pragma unroll
          for (float& x : tile) x = 0;
        }
      }
      add_terms<FloatProducts<true>>(call, sum);
    }
  }
  store_sum(reload(call, -1), sum);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::bias_gradient_fp32)
