// A bias in registers before there are scores.
#pragma once

#include "tile/modified_scores.h"

namespace fulmen::kernels {

// A lane's bias of a whole tile of keys, loaded before there are scores; memory's latency is then
// beside their product. Of rows that can be loaded by runs of columns.
template <bool kMasked, int kTiles>
struct BiasAhead {
  static constexpr int kBytes = static_cast<int>(sizeof(BiasElement)), kPerWord = 4 / kBytes,
                       kWords = kElements / kRowsPerLane / kPerWord;  // of a row's 16 keys
  unsigned word[kRowsPerLane][kTiles][kWords];

  FULMEN_DEVICE static BiasAhead of(const RowMap& map, Int64 first_row, Int64 first_key) {
    BiasAhead ahead;
    const ForwardArguments& a = map.arguments;
    const int left = at_most(a.seqlen_k - first_key, kScoreTile * kTiles);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 row = map.clamp(first_row + tile_row(slot));
      const auto* bias = ScoreRow::of(a, map.batch, map.head(row), map.query(row)).bias + first_key;
#pragma unroll
      for (int f = 0; f < kTiles; ++f) {
        unsigned bits[kElements];
        load_columns<kMasked, true>(bias + kScoreTile * f, left - kScoreTile * f, slot, bits);
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const int e = element(slot, kPerWord * w);
          ahead.word[slot][f][w] = kPerWord == 1 ? bits[e] : bits[e] | bits[e + 1] << 16U;
        }
      }
    }
    return ahead;
  }
  template <bool /*kMasked*/>
  FULMEN_DEVICE void columns(const ScoreRow& /*modifiers*/, Int64 /*first_key*/, int /*left*/,
                             int slot, int f, unsigned (&bias)[kElements]) const {
#pragma unroll
    for (int n = 0; n < kWords * kPerWord; ++n)
      bias[element(slot, n)] =
          word[slot][f][n / kPerWord] >> (16 * (n % kPerWord)) & (kPerWord == 1 ? ~0U : 0xFFFFU);
  }

 private:
  // The n-th element of a slot.
  FULMEN_DEVICE static constexpr int element(int slot, int n) {
    return n % kColumnRun + kColumnRun * slot + n / kColumnRun * kColumnRun * kRowsPerLane;
  }
};

}  // namespace fulmen::kernels
