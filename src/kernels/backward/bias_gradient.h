// dbias alone, by matrix instructions. A workgroup owns a tile of it, [kBlockM queries, kBlockN
// keys] of one head, and goes over a part of what dbias is summed over: its terms, a batch element,
// head and tile of queries each. A wave has kRowTiles x 16 queries and all keys of the tile.
//
//   bias[kBlockM, kBlockN]   registers, read once where all terms have the same
//   for each term:           q, dout [kBlockM, d], k, v [kBlockN, d] of the next one in flight
//     S = q k^T, D = dout v^T - delta
//     dbias += P D           registers: no operand, no exchange, nothing to LDS
//
// parts/bias_sum.h adds the parts in a fixed order. A sum of one part is stored straight to dbias.
#include "backward/bias_gradient_layout.h"
#include "backward/parts/bias_loop.h"

namespace fulmen::kernels {

constexpr BiasGradientLayout kTerm =
    BiasGradientLayout::of(kRowPadding, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers);
static_assert(kTerm.total == kLdsBytes,
              "bias_gradient: the host reserves the LDS that the tiles need");
static_assert(kTerm.first_pitch == FirstRows::kPitch && kTerm.second_pitch == SecondRows::kPitch,
              "bias_gradient: rows are where the host's layout has them");

// A wave's rows of q and dout as operands, unless they stay in LDS.
struct TermRows {
  QueryOperand first[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kHeadDim / kTileMmaK];
  QueryOperand second[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kHeadDimV / kTileMmaK];

  FULMEN_DEVICE void read(int first_at, int second_at) {
    if constexpr (!kRowsInLds) {
      read_rows<kHeadDim>(first_at, first);
      read_rows<kHeadDimV>(second_at, second);
    }
  }

 private:
  template <int kDims, int kSteps>
  FULMEN_DEVICE static void read_rows(int at, QueryOperand (&rows)[kRowTiles][kSteps]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        rows[t][d] = LdsRows<kDims>::query_operand(at + kScoreTile * t * LdsRows<kDims>::kPitch, d);
      }
    }
  }
};

// product[t] += rows . keys, of 16 keys from keys_at on.
template <int kDims, int kHeld, int kSteps>
FULMEN_DEVICE void multiply_rows(const QueryOperand (&rows)[kHeld][kSteps], int rows_at,
                                 int keys_at, float (&product)[kRowTiles][kElements]) {
  using Rows = LdsRows<kDims>;
#pragma unroll
  for (int d = 0; d < kDims / kTileMmaK; ++d) {
    const KeyOperand keys = Rows::key_operand(keys_at, d);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const QueryOperand row = kRowsInLds
                                   ? Rows::query_operand(rows_at + kScoreTile * t * Rows::kPitch, d)
                                   : rows[kRowsInLds ? 0 : t][kRowsInLds ? 0 : d];
      multiply_scores<Element>(product[t], keys, row);
    }
    if (d % 2 == 1) schedule_fence();
  }
}

// Some of these rows as a tile's source. Whole rows are near each other: distances of 32 bits.
struct TermSource {
  using Stride = Either<kWholeRows, int, Int64>;
  const Element* rows;
  Stride stride;
  int dims, last;

  // left: rows from the first one on.
  FULMEN_DEVICE static TermSource of(const Element* rows, Int64 stride, int dims, Int64 left,
                                     int block) {
    return {rows, static_cast<Stride>(stride), dims, at_most(left, block) - 1};
  }
  FULMEN_DEVICE int clamp(int row) const { return row < last ? row : last; }
};

// The tiles of a term in flight to LDS.
class TermTiles {
 public:
  // row: the first query.
  FULMEN_DEVICE void fetch(const BackwardArguments& a, const TermRowsInMemory& from, Int64 row,
                           Int64 first_column, int buffer) {
    const int at = buffer * kTerm.buffer_bytes;
    const Int64 keys = a.seqlen_k - first_column, queries = a.seqlen_q - row;
    const auto any = [](int) { return true; };
    keys_.fetch(TermSource::of(from.keys, a.k.row, a.head_dim, keys, kBlockN), at + kTerm.keys_at,
                0, kTerm.first_pitch, any);
    values_.fetch(TermSource::of(from.values, a.v.row, a.head_dim_v, keys, kBlockN),
                  at + kTerm.values_at, 0, kTerm.second_pitch, any);
    queries_.fetch(TermSource::of(from.queries, a.q.row, a.head_dim, queries, kBlockM),
                   at + kTerm.queries_at, 0, kTerm.first_pitch, any);
    dout_.fetch(TermSource::of(from.dout, a.dout.row, a.head_dim_v, queries, kBlockM),
                at + kTerm.dout_at, 0, kTerm.second_pitch, any);
    commit_columns();
  }
  FULMEN_DEVICE void publish(int buffer) const {
    const int at = buffer * kTerm.buffer_bytes;
    keys_.publish(at + kTerm.keys_at, 0, kTerm.first_pitch);
    values_.publish(at + kTerm.values_at, 0, kTerm.second_pitch);
    queries_.publish(at + kTerm.queries_at, 0, kTerm.first_pitch);
    dout_.publish(at + kTerm.dout_at, 0, kTerm.second_pitch);
    columns_arrived();
  }

 private:
  ColumnTile<kHeadDim, false> keys_;
  ColumnTile<kHeadDimV, false> values_;
  ColumnTile<kHeadDim, false, kWorkgroup, kBlockM> queries_;
  ColumnTile<kHeadDimV, false, kWorkgroup, kBlockM> dout_;
};

// S and D of a term.
struct TermProducts {
  using Tiles = TermTiles;
  static constexpr bool kPlain = true;
  TermRows rows;
  int at, first_at, second_at;  // the term's buffer, and the wave's rows in it

  FULMEN_DEVICE static TermProducts of(const BackwardArguments& /*a*/, const TermWalk& /*walk*/,
                                       int buffer) {
    const int wave_row = wave_id() * kRowTiles * kScoreTile;
    TermProducts p;
    p.at = buffer * kTerm.buffer_bytes;
    p.first_at = p.at + kTerm.queries_at + wave_row * kTerm.first_pitch;
    p.second_at = p.at + kTerm.dout_at + wave_row * kTerm.second_pitch;
    p.rows.read(p.first_at, p.second_at);
    return p;
  }
  template <bool kMinusDelta, class Body>
  FULMEN_DEVICE void for_each(const TermStatistics& numbers, const Body& body) const {
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      TermScores score = {}, gradient = {};
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if constexpr (kMinusDelta) gradient[t][e] = -numbers.row[t][row_slot(e)].delta;
        }
      }
      multiply_rows<kHeadDim>(rows.first, first_at,
                              at + kTerm.keys_at + kScoreTile * f * kTerm.first_pitch, score);
      multiply_rows<kHeadDimV>(rows.second, second_at,
                               at + kTerm.values_at + kScoreTile * f * kTerm.second_pitch,
                               gradient);
      FULMEN_INLINED body(f, score, gradient);
    }
  }
};

FULMEN_DEVICE void bias_gradient(const BackwardArguments& call) {
  BiasTiles sum = {};
  add_terms<TermProducts>(call, sum);
  store_sum(reload(call, -1), sum);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::bias_gradient)
