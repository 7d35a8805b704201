// What a workgroup of backward/bias_gradient.h or bias_gradient_fp32.h reads of a term beside its
// tiles: where rows are, row statistics, the mask's bits; and the bias.
#pragma once

#include "backward/parts/bias.h"
#include "backward/parts/tile.h"
#include "tile/modified_scores.h"

namespace fulmen::kernels {

static_assert(kGivesDbias && !kGivesDq && !kRowsAreKeys && !kVariable,
              "bias_gradient: dbias alone, of sequences of one length");

using BiasTiles = float[kRowTiles][kColumnTiles][kElements];  // of a wave's rows, all keys

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

}  // namespace fulmen::kernels
