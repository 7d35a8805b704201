// Where the tiles of forward/prefill_wgmma.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of forward/prefill_wgmma.h, all in panels (targets/sm90/target.h): queries, and outputs
// before they are stored; two tiles of keys, two of values.
struct WarpgroupPrefillLayout {
  int queries_at;
  int keys_at, key_bytes;  // a tile's
  int values_at, value_bytes, total;

  FULMEN_ALGORITHM static WarpgroupPrefillLayout of(int head_dim, int head_dim_v, int block_m,
                                                    int block_n) {
    WarpgroupPrefillLayout l{};
    l.key_bytes = block_n * 2 * head_dim;
    l.value_bytes = block_n * 2 * head_dim_v;
    l.keys_at = block_m * 2 * (head_dim > head_dim_v ? head_dim : head_dim_v);
    l.values_at = l.keys_at + 2 * l.key_bytes;
    l.total = l.values_at + 2 * l.value_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
