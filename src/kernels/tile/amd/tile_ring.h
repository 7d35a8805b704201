// AMD: no ring.
#pragma once

namespace fulmen::kernels {

static_assert(!kTileRing, "tile_ring: operands come straight from memory");

struct RingTile {
  template <bool kValues>
  FULMEN_DEVICE NearRows<kValues> rows() const;
};
struct TileRing {
  FULMEN_DEVICE explicit TileRing(int /*wave*/) {}
  FULMEN_DEVICE void fetch(const KeySource& keys, const KeySource& values, const TilePlace& tile);
  FULMEN_DEVICE RingTile arrived();
  FULMEN_DEVICE void release();
};

}  // namespace fulmen::kernels
