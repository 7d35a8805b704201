// NVIDIA: two lanes exchange outputs so that a row's run is 32 bytes, as memory is written; or
// outputs go through LDS.
#pragma once

#include "tile/short_tile.h"

namespace fulmen::kernels {

constexpr bool kPairsOutputs = kWholeRows;

// kRowTiles x 16 rows of kDims from `row` of a board on, by way of LDS [16][kDims] at `at`, which
// is the wave's own.
template <int kDims, int kRowTiles>
FULMEN_DEVICE void store_tiles_through_lds(
    int at, const Element* board, Int64 board_stride, int row, Int64 end, int dims, float scale,
    const float (&sum)[kRowTiles][kDims / kScoreTile][kElements]) {
  using Rows = SwizzledRows<kDims>;
  constexpr int kLanes = kDims <= 32    ? 4
                         : kDims <= 64  ? 8
                         : kDims <= 128 ? 16
                                        : 32,
                kRows = kWaveSize / kLanes;
  const unsigned lane = own_lane();
  const int lane_row = static_cast<int>(lane / kLanes), piece = static_cast<int>(lane % kLanes);
  const int stride = static_cast<int>(board_stride);  // whole rows are near
  auto* to = const_cast<Element*>(board) + ((row + lane_row) * stride + 8 * piece);
  const bool some = 8 * piece < kDims && (kExactDims || 8 * piece < dims);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    wave_barrier();
#pragma unroll
    for (int d = 0; d < kDims / kScoreTile; ++d) {
      Words<4> words;
#pragma unroll
      for (int w = 0; w < 4; ++w)
        words.word[w] = pack<Element>(sum[t][d][2 * w] * scale, sum[t][d][2 * w + 1] * scale);
      Rows::leave(lane, at, 0, d, words);
    }
    wave_barrier();
#pragma unroll
    for (int n = 0; n < kScoreTile; n += kRows) {
      if (!some || !(kWholeTiles || row + kScoreTile * t + n + lane_row < end)) continue;
      const auto words = lds_load<Words<4> >(at + Rows::place(n + lane_row, 16 * piece));
      global_store(reinterpret_cast<Words<4>*>(to + (kScoreTile * t + n) * stride), words);
    }
  }
}

}  // namespace fulmen::kernels
