// LDS of tile/tile_ring.h: a wave's tiles of keys and values in flight. The same formulas for
// the host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// A row of a wave's ring: bytes from its first one to the next row's. A lane reads 8 numbers at a
// time, of keys 8 rows by 4 lanes, of values every second row: so no two lanes of a phase meet in a
// bank. dims: a multiple of 32.
FULMEN_ALGORITHM int ring_key_pitch(int dims, int bytes) { return dims * bytes | 32 * bytes; }
FULMEN_ALGORITHM int ring_value_pitch(int dims, int bytes) { return dims * bytes + 16; }

struct TileRingLayout {
  int key_pitch, value_pitch;
  // A tile: where its values begin, what its keys and its values are multiplied with, all of it.
  int values_at, key_scales_at, value_scales_at, tile_bytes;

  FULMEN_ALGORITHM static TileRingLayout of(int dims, int key_bytes, int dims_v, int value_bytes,
                                            int block_n) {
    const int key_pitch = ring_key_pitch(dims, key_bytes),
              value_pitch = ring_value_pitch(dims_v, value_bytes);
    const int rows = block_n * (key_pitch + value_pitch), scales = 4 * block_n;
    return {key_pitch, value_pitch, block_n * key_pitch, rows, rows + scales, rows + 2 * scales};
  }
};

}  // namespace fulmen::kernels
