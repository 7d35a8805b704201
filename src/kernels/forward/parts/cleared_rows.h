// Values of keys that no row attends become 0 in LDS: they are not to be multiplied, not even with
// 0, as they may be NaN. Eight lanes have a row of each panel.
#pragma once

#include "core/matrix.h"
#include "tile/mask_bits.h"

namespace fulmen::kernels {

template <int kFirstPanel, int kEndPanel>
FULMEN_DEVICE void clear_row(int tile_at, int row) {
#pragma unroll
  for (int p = kFirstPanel; p < kEndPanel; ++p)
    lds_store(tile_at + (p * kBlockN + row) * kPanelRowBytes + lane_id() % 8 * 16, Words<4>{});
}
// Rows [begin, end) of a tile.
template <int kFirstPanel, int kEndPanel>
FULMEN_DEVICE void clear_rows(int tile_at, int begin, int end) {
#pragma unroll 1
  for (int row = begin + lane_id() / 8; row < end; row += kWaveSize / 8)
    clear_row<kFirstPanel, kEndPanel>(tile_at, row);
}
// Those whose bits are not set.
template <int kFirstPanel, int kEndPanel>
FULMEN_DEVICE void clear_rows(int tile_at, const TileBits& attended) {
#pragma unroll
  for (int w = 0; w < TileBits::kCount; ++w) {
#pragma unroll
    for (int first = 0; first < 32; first += kWaveSize / 8) {
      const int row = first + lane_id() / 8;
      if ((attended.word[w] >> static_cast<unsigned>(row) & 1U) == 0)
        clear_row<kFirstPanel, kEndPanel>(tile_at, 32 * w + row);
    }
  }
}

}  // namespace fulmen::kernels
