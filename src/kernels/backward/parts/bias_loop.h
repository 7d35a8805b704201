// The main loop of the kernels that give dbias alone. Products has the tiles in flight and computes
// S and D of a term:
//   Products::Tiles                  fetch(), publish()
//   Products::kPlain                 whether add_plain() may be taken
//   Products::of(a, walk, buffer)    what a wave holds of the term's rows
//   for_each<kMinusDelta>(numbers, body)   body(f, S, D) for each 16 keys; D begins with -delta, or
//                                          without kMinusDelta with 0
#pragma once

#include "backward/parts/bias_walk.h"

namespace fulmen::kernels {

// True if nothing but the bias, the band and the bits of a mask modifies scores. Of tiles that the
// band leaves whole, P then takes two FMAs and an exponential an element.
constexpr bool kPlainTerms = !kAlibi && !kSoftcap && !kScoreMod && !kDropout && !kMaskBytes;

using TermScores = float[kRowTiles][kElements];  // of 16 keys

struct TermTask : BackwardTask {
  // kPlainTerms, of a tile that the band leaves whole; kBits: but for the mask's bits.
  template <bool kBits, class Products>
  FULMEN_DEVICE void add_plain(const Products& products, const TermStatistics& numbers,
                               const TermBits& bits, const BiasTiles& bias, BiasTiles& sum) const {
    const float scale = kLog2OfUnit * arguments.scale;
    products.template for_each<true>(
        numbers, [&](int f, const TermScores& score, const TermScores& gradient) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
              const float offset = kLog2OfUnit * numbers.row[t][row_slot(e)].offset,
                          rest = kLog2E * bias[t][f][e] - offset;
              const float p = exp2(scale * score[t][e] + rest);
              if constexpr (kBits) {
                const float ds = p * gradient[t][e];  // may be NaN where it is not attended
                sum[t][f][e] += bits.row[t][row_slot(e)].has(f, e) ? ds : 0.0F;
              } else {
                sum[t][f][e] += p * gradient[t][e];
              }
            }
          }
        });
  }

  // Any tile of any problem. The bias is read where it is needed.
  template <class Products>
  FULMEN_DEVICE void add_any(const Products& products, const TermStatistics& numbers, Int64 head,
                             Int64 first_column, BiasTiles& sum) const {
    const DropoutMask dropout(arguments, batch, head);
    TileScores tile[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      tile[t] = tile_scores<true>(head, wave_row + kScoreTile * t, first_column);
      // A query without any key has no gradient, whatever its dout holds.
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        if (!numbers.row[t][slot].has_keys()) tile[t].high[slot] = 0;
      }
    }
    products.template for_each<false>(numbers, [&](int f, TermScores& score, TermScores& gradient) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const auto stays =
            staying(dropout, wave_row + kScoreTile * t, first_column + kScoreTile * f);
        gradients<true>(tile[t], kScoreTile * f, 0, stays, numbers.row[t], score[t], gradient[t],
                        sum[t][f]);
      }
    });
  }
};

// Adds a term, whose tiles are in LDS.
template <class Products>
FULMEN_DEVICE void add_term(const BackwardArguments& a, const TermWalk& walk,
                            const TermStatistics& numbers, int buffer, const BiasTiles& bias,
                            BiasTiles& sum) {
  const BiasSum::Term& term = walk.term;
  const int wave_row = wave_id() * kRowTiles * kScoreTile;
  const TermTask task{{a, term.batch, band_of(a), term.row + wave_row, walk.end_of_rows(a), 0, 0}};
  const TermBits bits = TermBits::of(a, term, wave_row, walk.first_column);
  if (!bits.some) return;
  const Products products = Products::of(a, walk, buffer);
  if constexpr (kPlainTerms && Products::kPlain) {
    if (walk.is_whole(a) && numbers.are_plain()) {
      if (bits.all) {
        task.add_plain<false>(products, numbers, bits, bias, sum);
      } else {
        task.add_plain<true>(products, numbers, bits, bias, sum);
      }
      return;
    }
  }
  task.add_any(products, numbers, term.head, walk.first_column, sum);
}

// sum: of the workgroup's terms.
template <class Products>
FULMEN_DEVICE void add_terms(const BackwardArguments& call, BiasTiles& sum) {
  const int wave_row = wave_id() * kRowTiles * kScoreTile;
  BiasTiles bias;
  TermWalk walk = TermWalk::of(call, OwnTile::of(call, workgroup_id()));
  typename Products::Tiles tiles;
  TermStatistics numbers;
  // Starts the loads of a term, if there is one.
  const auto fetch = [&](const BackwardArguments& a, const TermWalk& of, int buffer) {
    if (of.left <= 0) return;
    tiles.fetch(a, of.rows, of.term.row, of.first_column, buffer);
    numbers = TermStatistics::of(a, of.rows.statistics, of.term.row + wave_row);
  };
  if constexpr (!kFetchLate) fetch(call, walk, 0);
  if constexpr (!kBatchBias) {
    if (walk.left > 0) load_bias(call, walk.term, wave_row, walk.first_column, bias);
  }
  for (int buffer = 0; walk.left > 0; buffer = kBuffers == 1 ? 0 : 1 - buffer) {
    const BackwardArguments& a = reload(call, walk.left);
    const TermWalk next = walk.next(a);
    if constexpr (kBuffers == 1 && !kCopiesToLds) barrier();  // the term before is read by now
    if constexpr (kFetchLate) fetch(a, walk, buffer);
    const TermStatistics now = numbers;
    tiles.publish(buffer);
    barrier();
    if constexpr (kBatchBias) load_bias(a, walk.term, wave_row, walk.first_column, bias);
    if constexpr (kFetchEarly) fetch(a, next, kBuffers == 1 ? 0 : 1 - buffer);
    add_term<Products>(a, walk, now, buffer, bias, sum);
    if constexpr (!kFetchEarly && !kFetchLate) {
      barrier();
      fetch(a, next, 0);
    }
    walk = next;
  }
}

}  // namespace fulmen::kernels
