// AMD: no ring.
#pragma once

#include "tile/stored_scales.h"

namespace fulmen::kernels {

static_assert(!kTileRing, "tile_ring: operands come straight from memory");

struct RingTile {
  template <bool kValues, int kTiles>
  FULMEN_DEVICE StepScales<kValues, kTiles, true> scales(float factor) const;
  template <bool kValues>
  FULMEN_DEVICE NearRows<kValues> rows() const;
};
struct TileRing {
  FULMEN_DEVICE TileRing(int /*wave*/, const StoredHead<false>& /*keys*/,
                         const StoredHead<true>& /*values*/) {}
  FULMEN_DEVICE void fetch(const KeySource& keys, const KeySource& values, const TilePlace& tile);
  FULMEN_DEVICE RingTile arrived();
  FULMEN_DEVICE void release();
};

}  // namespace fulmen::kernels
