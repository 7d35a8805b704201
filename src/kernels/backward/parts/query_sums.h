// Sums for dq that the kernels of 5 products add to and backward/parts/dq.h reads: tiles of 16
// queries, each its dims by 16, and of those 16 x 16 what a wave holds: all lanes' first kAddWidth
// elements, then their next ones.
#pragma once

#include "core/matrix.h"
#include "core/sequence.h"

namespace fulmen::kernels {

constexpr int kSumTile = kScoreTile * kScoreTile;

struct QuerySums {
  float* head;  // of one head
  Int64 tiles;  // that the sequence has

  FULMEN_DEVICE static QuerySums of(const BackwardArguments& a, Int64 batch, Int64 head) {
    const Int64 tiles = tiles_of(a.seqlen_q, kScoreTile);
    if constexpr (kVariable) {  // its own begin is in a.query_sums
      const Int64 all = a.sequences.cu_seqlens_q != nullptr ? a.rows_q / kScoreTile + a.batch
                                                            : tiles_of(a.rows_q, kScoreTile);
      return {a.query_sums + head * all * kScoreTile * kHeadDim, tiles};
    }
    return {a.query_sums + (batch * a.num_heads + head) * tiles * kScoreTile * kHeadDim, tiles};
  }
  // 16 dims of 16 queries.
  FULMEN_DEVICE float* tile(Int64 queries, int dims) const {
    return head + (queries * (kHeadDim / kScoreTile) + dims) * kSumTile;
  }
  // Elements e to e + kAddWidth of a lane, from the tile's beginning.
  FULMEN_DEVICE static constexpr int place(int e) { return e * kWaveSize; }
  FULMEN_DEVICE static float* of_lane(float* tile, unsigned lane) {
    return tile + lane * kAddWidth;
  }

  // kAddWidth of a lane's elements, from `first` on.
  FULMEN_DEVICE static Words<kAddWidth> words_of(const float (&x)[kElements], int first) {
    Words<kAddWidth> words;
#pragma unroll
    for (int n = 0; n < kAddWidth; ++n) words.word[n] = float_bits(x[first + n]);
    return words;
  }
  // To the tile that begins kTileOffset floats further.
  template <int kTileOffset, int kElement = 0>
  FULMEN_DEVICE static void add(float* lane_tile, const float (&x)[kElements]) {
    global_add<kTileOffset + place(kElement)>(lane_tile, words_of(x, kElement));
    if constexpr (kElement + kAddWidth < kElements)
      add<kTileOffset, kElement + kAddWidth>(lane_tile, x);
  }
  FULMEN_DEVICE static void load(float* tile, float (&x)[kElements]) {
#pragma unroll
    for (int e = 0; e < kElements; e += kAddWidth) {
      const auto words = global_load(
          reinterpret_cast<const Words<kAddWidth>*>(of_lane(tile, lane_id()) + place(e)));
#pragma unroll
      for (int n = 0; n < kAddWidth; ++n) x[e + n] = bits_float(words.word[n]);
    }
  }
};

}  // namespace fulmen::kernels
