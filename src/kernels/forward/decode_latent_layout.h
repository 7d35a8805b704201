// Where the tiles of forward/decode_latent.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// 64 query rows and two tiles of 64 keys, in panels of 64 dims of 16 bits. value_dims: half of V's
// dims, rounded up to whole panels.
struct DecodeLatentLayout {
  static constexpr int kRows = 64, kPanelDims = 64, kPanelBytes = kRows * 2 * kPanelDims,
                       kTiles = 2;
  // mbarriers: queries, rows that are patched and sums; of a tile that its scores are computed, its
  // probabilities written, its halves filled, and empty.
  static constexpr int kBarriers = 3 + kTiles * (1 + 1 + 2 + 2), kBarrierBytes = 8;
  int tile_panels, tile_bytes, tiles_at;
  int probabilities_at, probability_step;  // of the first tile; to those of the second
  int references_at, sums_at, barriers_at, missing_at, total;

  FULMEN_ALGORITHM static DecodeLatentLayout of(int key_dims, int value_dims) {
    DecodeLatentLayout l{};
    const int key_panels = (key_dims + kPanelDims - 1) / kPanelDims,
              value_panels = 2 * (value_dims / kPanelDims);
    l.tile_panels = key_panels > value_panels ? key_panels : value_panels;
    l.tile_bytes = l.tile_panels * kPanelBytes;
    l.tiles_at = key_panels * kPanelBytes;
    const int tiles_end = l.tiles_at + kTiles * l.tile_bytes;
    // Probabilities take the place of the keys' last panel, which no value lies in, where there is
    // one.
    const bool in_keys = key_panels > value_panels;
    l.probabilities_at = in_keys ? l.tiles_at + l.tile_bytes - kPanelBytes : tiles_end;
    l.probability_step = in_keys ? l.tile_bytes : kPanelBytes;
    l.references_at = in_keys ? tiles_end : tiles_end + kTiles * kPanelBytes;
    l.sums_at = l.references_at + kTiles * kRows * 4;
    l.barriers_at = l.sums_at + kTiles * kRows * 4;
    l.missing_at = l.barriers_at + kBarriers * kBarrierBytes;
    l.total = l.missing_at + kBarrierBytes;
    return l;
  }
};

}  // namespace fulmen::kernels
