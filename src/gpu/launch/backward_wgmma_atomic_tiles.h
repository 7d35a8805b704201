// What kernels/backward/backward_wgmma_atomic.h needs to know of a target.
#pragma once

#include <cstdint>

namespace fulmen::gpu {

// Two warpgroups.
struct WgmmaAtomicTiles {
  int block_m, block_n;  // keys of both warpgroups, or of each where they share them; queries
  int64_t own_dims;      // above, two warpgroups share the sums of their keys: registers of both
  // Buffers for tiles of queries; for heads of one panel; with a band, where warpgroups have keys
  // of their own.
  int buffers, narrow_buffers, band_buffers;
};

}  // namespace fulmen::gpu
