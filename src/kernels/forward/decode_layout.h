// LDS of forward/decode.h: each wave's tiles of keys and values on their way, then, in the same
// place, what waves leave for the merge.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// A row of a wave's ring: bytes from its first one to the next row's. A lane reads 8 numbers at a
// time, of keys 8 rows by 4 lanes, of values every second row: so no two lanes of a phase meet in a
// bank. dims: a multiple of 32.
FULMEN_ALGORITHM int ring_key_pitch(int dims, int bytes) { return dims * bytes | 32 * bytes; }
FULMEN_ALGORITHM int ring_value_pitch(int dims, int bytes) { return dims * bytes + 16; }

struct DecodeRing {
  int key_pitch, value_pitch;
  // Of a tile: where values begin, and what its keys' scales and its values' are multiplied as, and
  // all of it.
  int values_at, key_scales_at, value_scales_at, tile_bytes;

  FULMEN_ALGORITHM static DecodeRing of(int dims, int key_bytes, int dims_v, int value_bytes,
                                        int block_n) {
    const int key_pitch = ring_key_pitch(dims, key_bytes),
              value_pitch = ring_value_pitch(dims_v, value_bytes);
    const int rows = block_n * (key_pitch + value_pitch), scales = 4 * block_n;
    return {key_pitch, value_pitch, block_n * key_pitch, rows, rows + scales, rows + 2 * scales};
  }
};

// Bytes of a workgroup. buffers: tiles of a wave's ring, 1 where there is none.
FULMEN_ALGORITHM int decode_lds_bytes(int waves, int dim_groups, int dims_v, int buffers,
                                      int tile_bytes) {
  const int merge = 4 * (waves / dim_groups) * 16 * (2 + dims_v + 4),
            rings = buffers > 1 ? waves * buffers * tile_bytes : 0;
  return merge > rings ? merge : rings;
}

}  // namespace fulmen::kernels
