// LDS of forward/decode.h: each wave's tiles of keys and values in flight, then, in the same
// place, what waves leave for the merge.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// Bytes of a workgroup. buffers: tiles of a wave's ring, 1 where there is none.
FULMEN_ALGORITHM int decode_lds_bytes(int waves, int dim_groups, int dims_v, int buffers,
                                      int tile_bytes) {
  const int merge = 4 * (waves / dim_groups) * 16 * (2 + dims_v + 4),
            rings = buffers > 1 ? waves * buffers * tile_bytes : 0;
  return merge > rings ? merge : rings;
}

}  // namespace fulmen::kernels
