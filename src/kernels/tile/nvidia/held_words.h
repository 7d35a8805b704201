// NVIDIA: in LDS, [row][column] with kPitch bytes a row, in the layout of probabilities.
#pragma once

#include "core/config.h"
#include "tile/transposed.h"

namespace fulmen::kernels {

template <int kTiles, int kPitch>
class HeldWords {
 public:
  static constexpr int kWords = kElements / 2;
  // Starts the copy of all rows [kBlockM][kBlockN] to `at`; `row` elements lie between rows.
  // kCopiesToLds alone.
  FULMEN_DEVICE static void copy(int at, const BiasElement* first, Int64 row) {
    constexpr int kLanes = kBlockN / 8, kRows = kWorkgroup / kLanes;
    const int lane_row = thread_id() / kLanes, piece = thread_id() % kLanes;
    const BiasElement* from = first + lane_row * row + 8 * piece;
#pragma unroll
    for (int n = 0; n < kBlockM; n += kRows)
      copy_async_16(at + (lane_row + n) * kPitch + 16 * piece, from + n * row, true);
  }
  // A tile of the wave's 16 rows from `row` on.
  FULMEN_DEVICE void keep(int at, int row, int tile, const unsigned (&words)[kWords]) {
    store_words<kPitch>(lane_id(), at, row / kScoreTile, tile,
                        {{words[0], words[1], words[2], words[3]}});
  }
  FULMEN_DEVICE void read(unsigned lane, int at, int row, int tile,
                          unsigned (&words)[kWords]) const {
    const Words<4> held = stored_operand<kPitch>(lane, at, row / kScoreTile, tile).words;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = held.word[w];
  }
};

}  // namespace fulmen::kernels
