// Which tile of dbias a workgroup has, its terms one after another, and where their sum goes.
#pragma once

#include "backward/parts/bias_terms.h"

namespace fulmen::kernels {

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

}  // namespace fulmen::kernels
