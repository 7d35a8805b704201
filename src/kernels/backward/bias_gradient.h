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
#include "backward/parts/bias_terms.h"

namespace fulmen::kernels {

static_assert(kGivesDbias && !kGivesDq && !kRowsAreKeys && !kVariable,
              "bias_gradient: dbias alone, of sequences of one length");

// True if nothing but the bias, the band and the bits of a mask modifies scores. Of tiles that the
// band leaves whole, P then takes two FMAs and an exponential an element.
constexpr bool kPlainTerms = !kAlibi && !kSoftcap && !kScoreMod && !kDropout && !kMaskBytes;

using TermScores = float[kRowTiles][kElements];  // of 16 keys

struct TermTask : BackwardTask {
  // Calls body(f, S, D) for each 16 keys. `at`: the term's buffer. D begins with -delta of
  // `numbers`, or, without kMinusDelta, with 0.
  template <bool kMinusDelta, class Body>
  FULMEN_DEVICE void for_products(const TermRows& rows, const TermStatistics& numbers, int at,
                                  const Body& body) const {
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
      multiply_rows<kHeadDim>(rows.first, wave_first_at,
                              at + kTerm.keys_at + kScoreTile * f * kTerm.first_pitch, score);
      multiply_rows<kHeadDimV>(rows.second, wave_second_at,
                               at + kTerm.values_at + kScoreTile * f * kTerm.second_pitch,
                               gradient);
      FULMEN_INLINED body(f, score, gradient);
    }
  }

  // kPlainTerms, of a tile that the band leaves whole; kBits: but for the mask's bits.
  template <bool kBits>
  FULMEN_DEVICE void add_plain(const TermRows& rows, const TermStatistics& numbers,
                               const TermBits& bits, const BiasTiles& bias, int at,
                               BiasTiles& sum) const {
    const float scale = kLog2OfUnit * arguments.scale;
    for_products<true>(
        rows, numbers, at, [&](int f, const TermScores& score, const TermScores& gradient) {
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
  FULMEN_DEVICE void add_any(const TermRows& rows, const TermStatistics& numbers, Int64 head,
                             Int64 first_column, int at, BiasTiles& sum) const {
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
    for_products<false>(rows, numbers, at, [&](int f, TermScores& score, TermScores& gradient) {
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

// Which tile of dbias a workgroup has, and which of its terms: ids count
// [parts][batches][heads][tiles of queries, or 1][tiles of keys], so that workgroups that run
// together read the same rows.
struct OwnTile {
  Int64 first_column;
  BiasSum sum;

  FULMEN_DEVICE static OwnTile of(const BackwardArguments& a, Int64 workgroup) {
    const auto id = static_cast<unsigned>(workgroup),
               columns = static_cast<unsigned>(tiles_of(a.seqlen_k, kBlockN)),
               all = columns * BiasSum::row_tiles(a, kBlockM), part = id / all,
               tile = id - part * all, row = tile / columns;
    return {static_cast<Int64>(tile - row * columns) * kBlockN,
            BiasSum(a, kBlockM, row * static_cast<unsigned>(a.bias_parts) + part)};
  }
};

// The terms that are left, by the current one. Of a band those are passed over in which no query
// attends a key of the tile.
struct TermWalk {
  BiasSum::Term term;
  TermRowsInMemory rows;
  int left;
  Int64 first_column;

  FULMEN_DEVICE static TermWalk of(const BackwardArguments& a, const OwnTile& own) {
    TermWalk walk{own.sum.term(own.sum.first_term),
                  {},
                  static_cast<int>(own.sum.last_term - own.sum.first_term),
                  own.first_column};
    walk.rows = TermRowsInMemory::of(a, walk.term, walk.first_column);
    if constexpr (kBand) walk.pass_over(a);
    return walk;
  }
  FULMEN_DEVICE TermWalk next(const BackwardArguments& a) const {
    TermWalk walk = *this;
    walk.step(a);
    if (kBand && a.dbias.row == 0) walk.pass_over(a);
    return walk;
  }
  FULMEN_DEVICE Int64 end_of_rows(const BackwardArguments& a) const {
    return term.row + kBlockM < a.seqlen_q ? term.row + kBlockM : a.seqlen_q;
  }
  // Returns true if all queries attend all keys that there are.
  FULMEN_DEVICE bool is_whole(const BackwardArguments& a) const {
    if constexpr (!kBand) return true;
    const algorithm::KeyRange keys = band_of(a).all(term.row, end_of_rows(a));
    const Int64 end = first_column + kBlockN < a.seqlen_k ? first_column + kBlockN : a.seqlen_k;
    return keys.begin <= first_column && keys.end >= end;
  }

 private:
  FULMEN_DEVICE void step(const BackwardArguments& a) {
    term = BiasSum::next(a, kBlockM, term);
    rows.step(a, term, first_column);
    --left;
  }
  FULMEN_DEVICE void pass_over(const BackwardArguments& a) {
#pragma unroll 1
    while (left > 0) {
      const algorithm::KeyRange keys = band_of(a).any(term.row, end_of_rows(a));
      if (keys.end > first_column && keys.begin < first_column + kBlockN) break;
      if (a.dbias.row != 0) {  // all terms are of the same queries
        left = 0;
      } else {
        step(a);
      }
    }
  }
};

// Adds a term, whose tiles are in LDS.
FULMEN_DEVICE void add_term(const BackwardArguments& a, const TermWalk& walk,
                            const TermStatistics& numbers, int buffer, const BiasTiles& bias,
                            BiasTiles& sum) {
  const BiasSum::Term& term = walk.term;
  const int at = buffer * kTerm.buffer_bytes, wave_row = wave_id() * kRowTiles * kScoreTile;
  const TermTask task{{a, term.batch, band_of(a), term.row + wave_row, walk.end_of_rows(a),
                       at + kTerm.queries_at + wave_row * kTerm.first_pitch,
                       at + kTerm.dout_at + wave_row * kTerm.second_pitch}};
  const TermBits bits = TermBits::of(a, term, wave_row, walk.first_column);
  if (!bits.some) return;
  TermRows rows;
  rows.read(task.wave_first_at, task.wave_second_at);
  if constexpr (kPlainTerms) {
    if (walk.is_whole(a) && numbers.are_plain()) {
      if (bits.all) {
        task.add_plain<false>(rows, numbers, bits, bias, at, sum);
      } else {
        task.add_plain<true>(rows, numbers, bits, bias, at, sum);
      }
      return;
    }
  }
  task.add_any(rows, numbers, term.head, walk.first_column, at, sum);
}

// The lane's elements of a row of the tile. kEnds: of which `left` keys are there.
template <bool kEnds, class T>
FULMEN_DEVICE void store_row(T* row, int left, int slot, const TileRow<kColumnTiles>& sum) {
#pragma unroll
  for (int f = 0; f < kColumnTiles; ++f) {
    if constexpr (!kEnds && kAnyAlignment && kColumnRun % 4 == 0 && sizeof(T) == 4) {
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        global_store_unaligned(row + kScoreTile * f + tile_column(e),
                               Words<4>{{float_bits(sum[f][e]), float_bits(sum[f][e + 1]),
                                         float_bits(sum[f][e + 2]), float_bits(sum[f][e + 3])}});
      }
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int j = kScoreTile * f + tile_column(e);
        if (row_slot(e) == slot && (!kEnds || j < left))
          global_store(row + j, from_float<T>(sum[f][e]));
      }
    }
  }
}
template <class T>
FULMEN_DEVICE void store_row(T* row, int left, int slot, const TileRow<kColumnTiles>& sum) {
  if (left == kBlockN) {
    store_row<false>(row, left, slot, sum);
  } else {
    store_row<true>(row, left, slot, sum);
  }
}
FULMEN_DEVICE void store_sum(const BackwardArguments& a, const BiasTiles& sum) {
  const OwnTile own = OwnTile::of(a, workgroup_id());
  const int left = at_most(a.seqlen_k - own.first_column, kBlockN);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const int row = (wave_id() * kRowTiles + t) * kScoreTile + tile_row(slot);
      if (!own.sum.has_row(a, row)) continue;
      if (a.bias_partials == nullptr) {
        store_row(own.sum.row_of_dbias(a, row) + own.first_column, left, slot, sum[t]);
      } else {
        store_row(own.sum.row_of_part(a, row) + own.first_column, left, slot, sum[t]);
      }
    }
  }
}

FULMEN_DEVICE void bias_gradient(const BackwardArguments& call) {
  const int wave_row = wave_id() * kRowTiles * kScoreTile;
  BiasTiles bias, sum = {};
  TermWalk walk = TermWalk::of(call, OwnTile::of(call, workgroup_id()));
  TermTiles tiles;
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
    add_term(a, walk, now, buffer, bias, sum);
    if constexpr (!kFetchEarly && !kFetchLate) {
      barrier();
      fetch(a, next, 0);
    }
    walk = next;
  }
  store_sum(reload(call, -1), sum);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::bias_gradient)
