// From the products of a tile of queries to P^T and dS^T, by the row statistics that the loader of
// backward_tma.h and backward_tma_wide.h brings.
#pragma once

#include "backward/parts/stored_bias.h"
#include "backward/parts/tma_bias.h"
#include "backward/parts/tma_tiles.h"

namespace fulmen::kernels {

// The row statistics of kTiles x 16 queries that a lane's elements need. kSplitStatistics: in
// registers, before scores are there.
template <int kTiles>
class Statistics {
 public:
  // at: of a tile in LDS; first: of its queries.
  FULMEN_DEVICE Statistics(int at, int first)
      : offsets_at_(at + (kSplitStatistics ? 4 : 8) * first) {}
  FULMEN_DEVICE void load_offsets() {
    if constexpr (kSplitStatistics) load(offsets_at_, offsets_);
  }
  FULMEN_DEVICE void load_deltas() {
    if constexpr (kSplitStatistics) load(offsets_at_ + 4 * kBlockN, deltas_);
  }
  FULMEN_DEVICE float offset(int tile, int e) const {
    return bits_float(offsets_[tile][e / 4].word[e % 2]);
  }
  FULMEN_DEVICE float delta(int tile, int e) const {
    return bits_float(deltas_[tile][e / 4].word[e % 2]);
  }
  // !kSplitStatistics: the pairs in LDS.
  FULMEN_DEVICE int at() const { return offsets_at_; }

 private:
  FULMEN_DEVICE static void load(int from, Words<2> (&pairs)[kTiles][2]) {
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
        pairs[f][n] = lds_load<Words<2>>(from + 4 * (kScoreTile * f + tile_column(4 * n)));
    }
  }

  int offsets_at_;
  // A lane has two pairs of neighbours of 16 columns.
  Words<2> offsets_[kTiles][2], deltas_[kTiles][2];
};

// Waits for the products S^T of kTiles x 16 queries, from the tile's query `first` on, and
// overwrites S^T with P^T. The kLater groups of products behind them may stay in flight. With
// dropout or softcap wait_for_gradients() does this, too.
template <bool kMasked, int kLater, int kTiles>
FULMEN_DEVICE void wait_for_probabilities(const BackwardTask& task, int head, Int64 first_query,
                                          int first, Statistics<kTiles>& statistics,
                                          float (&score)[kTiles][kElements]) {
  if constexpr (kSplitStatistics) {
    TileScores tile = task.tile_scores<kMasked>(head, task.wave_row, first_query);
    tile.keep_half<kScoreTile * kTiles>(first);
    BiasPairs bias(task, head, first_query);
    bias.load<kMasked>(first);
    if constexpr (kTiles > 1) bias.load<kMasked>(first + kScoreTile);
    wgmma_wait<kLater>();
    wgmma_hold(score);
    statistics.load_deltas();
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      const auto offset_of = [&](int e) { return statistics.offset(f, e); };
      const int columns = first + kScoreTile * f;
      if constexpr (kBiasInPairs) {
        unsigned words[4];
        bias.transpose(columns, words);
        if (f + 2 < kTiles) bias.load<kMasked>(columns + 2 * kScoreTile);
        task.probabilities<kMasked, true>(tile, columns, score[f], offset_of,
                                          [&](int e) { return BiasPairs::of(words, e); });
      } else {
        task.probabilities<kMasked>(tile, columns, score[f], offset_of);
      }
    }
  }
}
// Then waits for the products D^T and overwrites D^T with dS^T.
template <bool kMasked, int kLater, int kTiles>
FULMEN_DEVICE void wait_for_gradients(const BackwardTask& task, int head, Int64 first_query,
                                      int first, Statistics<kTiles>& statistics,
                                      float (&score)[kTiles][kElements],
                                      float (&gradient)[kTiles][kElements]) {
  if constexpr (kSplitStatistics) {
    wgmma_wait<kLater>();
    wgmma_hold(gradient);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        gradient[f][e] = score[f][e] * (gradient[f][e] - statistics.delta(f, e));
      store_bias_gradient<kMasked>(task, head, task.wave_row, first_query + first + kScoreTile * f,
                                   score[f], gradient[f]);
    }
  } else {
    const RowStatistics none[kRowsPerLane] = {};
    wait_for_scores<kMasked, kLater>(task, head, first_query, first, statistics.at(), none, score,
                                     gradient);
  }
}
// Runs both of these.
template <bool kMasked, int kLater, int kTiles>
FULMEN_DEVICE void wait_for_scores(const BackwardTask& task, int head, Int64 first_query, int first,
                                   Statistics<kTiles>& statistics,
                                   float (&score)[kTiles][kElements],
                                   float (&gradient)[kTiles][kElements]) {
  wait_for_probabilities<kMasked, kLater + 1>(task, head, first_query, first, statistics, score);
  wait_for_gradients<kMasked, kLater>(task, head, first_query, first, statistics, score, gradient);
}

}  // namespace fulmen::kernels
