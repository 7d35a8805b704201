// A wave's tiles of keys and values in LDS, several of them in flight: so many bytes that their
// latency does not matter, whatever the registers are. Each wave has a ring of its own
// and waits for nobody. As tile/nvidia/tile_ring.h; on AMD operands come straight from memory.
#pragma once

#include "tile/direct.h"
#include "tile/stored_scales.h"
#include "tile/tile_ring_layout.h"

namespace fulmen::kernels {

// kBuffers tiles, one being read.
constexpr bool kTileRing = kConfig.buffers > 1;

}  // namespace fulmen::kernels

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/tile_ring.h"
#else
#include "tile/amd/tile_ring.h"
#endif
