// What a workgroup of backward/bias_gradient.h reads of a term: tiles of q, dout, k and v, row
// statistics, the mask's bits; and the bias.
#pragma once

#include "backward/bias_gradient_layout.h"
#include "backward/parts/bias.h"
#include "backward/parts/tile.h"
#include "tile/modified_scores.h"

namespace fulmen::kernels {

constexpr BiasGradientLayout kTerm =
    BiasGradientLayout::of(kRowPadding, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers);
static_assert(kTerm.total == kLdsBytes,
              "bias_gradient: the host reserves the LDS that the tiles need");
static_assert(kTerm.first_pitch == FirstRows::kPitch && kTerm.second_pitch == SecondRows::kPitch,
              "bias_gradient: rows are where the host's layout has them");

using BiasTiles = float[kRowTiles][kColumnTiles][kElements];  // of a wave's rows, all keys

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

// Where a term's rows are: of q and dout those of its tile of queries, of k and v of the tile's
// keys; and the row statistics of its head. From one batch to the next these are additions.
struct TermRowsInMemory {
  const Element* keys;
  const Element* values;
  const Element* queries;
  const Element* dout;
  const Words<2>* statistics;

  FULMEN_DEVICE static TermRowsInMemory of(const BackwardArguments& a, const BiasSum::Term& t,
                                           Int64 first_column) {
    // Few heads: a division of 64 bits would be a branch, behind which AMD's compiler does not know
    // that all lanes have the same address.
    const unsigned kv_head = static_cast<unsigned>(t.head) / static_cast<unsigned>(a.group_size);
    return {at<Element>(a.k, t.batch, first_column, kv_head),
            at<Element>(a.v, t.batch, first_column, kv_head),
            at<Element>(a.q, t.batch, t.row, t.head), at<Element>(a.dout, t.batch, t.row, t.head),
            RowStatistics::first_of(a, t.batch, t.head)};
  }
  // The same of the term after the one that they are of, which is `next`.
  FULMEN_DEVICE void step(const BackwardArguments& a, const BiasSum::Term& next,
                          Int64 first_column) {
    if (a.dbias.row == 0 || a.dbias.head == 0) {
      *this = of(a, next, first_column);
    } else {
      keys += a.k.batch;
      values += a.v.batch;
      queries += a.q.batch;
      dout += a.dout.batch;
      statistics += a.num_heads * a.seqlen_q;
    }
  }
};

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

// A wave's row statistics: those of the next term are in flight with its tiles.
struct TermStatistics {
  RowStatistics row[kRowTiles][kRowsPerLane];

  // Rows past the end repeat the last one: what they give is not stored. Where dbias is summed over
  // queries they have no keys. of_head: the head's rows.
  FULMEN_DEVICE static TermStatistics of(const BackwardArguments& a, const Words<2>* of_head,
                                         Int64 wave_row) {
    TermStatistics numbers;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = wave_row + kScoreTile * t + tile_row(slot);
        const bool there = i < a.seqlen_q;
        numbers.row[t][slot] =
            RowStatistics::from(global_load(of_head + (there ? i : a.seqlen_q - 1)));
        if (!there && a.dbias.row == 0) numbers.row[t][slot] = {kInfinity, 0};
      }
    }
    return numbers;
  }
  // True if each row has keys, and its log-sum-exp is not rounded.
  FULMEN_DEVICE bool are_plain() const {
    constexpr float kMost = kNaturalUnits ? kRoundedLse : 3.0e38F;
    float largest = 0;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot)
        largest = larger(largest, absolute(row[t][slot].offset));
    }
    return !any_lane(largest > kMost);
  }
};

// The mask's bits of a wave's rows.
struct TermBits {
  TileBits row[kRowTiles][kRowsPerLane];
  bool some, all;  // of the tile's keys

  FULMEN_DEVICE static TermBits of(const BackwardArguments& a, const BiasSum::Term& term,
                                   int wave_row, Int64 first_column) {
    TermBits bits{};
    bits.some = bits.all = true;
    if constexpr (kMaskBits) {
      const unsigned* rows = mask_rows(a, term.batch, term.head);
      bool none = true, whole = true;
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int slot = 0; slot < kRowsPerLane; ++slot) {
          const Int64 asked = term.row + wave_row + kScoreTile * t + tile_row(slot),
                      i = asked < a.seqlen_q ? asked : a.seqlen_q - 1;
          bits.row[t][slot] = TileBits::of(
              rows + (a.mask_bits.rows == 1 ? 0 : i) * a.mask_bits.words, first_column);
          none = none && bits.row[t][slot].is_empty();
          whole = whole && bits.row[t][slot].is_full();
        }
      }
      bits.some = any_lane(!none);
      bits.all = !any_lane(!whole);
    }
    return bits;
  }
};

// The bias of a wave's rows and the tile's keys, in natural units. What is past an end repeats what
// is there.
FULMEN_DEVICE void load_bias(const BackwardArguments& a, const BiasSum::Term& term, int wave_row,
                             Int64 first_column, BiasTiles& bias) {
  const int left = at_most(a.seqlen_k - first_column, kBlockN);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 asked = term.row + wave_row + kScoreTile * t + tile_row(slot),
                  i = asked < a.seqlen_q ? asked : a.seqlen_q - 1;
      const BiasElement* row = at<BiasElement>(a.bias, term.batch, i, term.head) + first_column;
#pragma unroll
      for (int f = 0; f < kColumnTiles; ++f) {
        unsigned bits[kElements];
        load_columns<true, kWholeBias>(row + kScoreTile * f, left - kScoreTile * f, slot, bits);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (row_slot(e) == slot) bias[t][f][e] = of_bits<BiasElement>(bits[e]);
        }
      }
    }
  }
}

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

}  // namespace fulmen::kernels
