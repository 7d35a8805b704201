// Where the tiles of forward/decode_tma.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of forward/decode_tma.h: 64 rows of queries, `buffers` tiles of keys and as many of values in
// panels, and mbarriers.
struct TmaDecodeLayout {
  static constexpr int kRows = 64, kBarrierBytes = 8;
  int queries_at;
  int keys_at, key_bytes;  // a tile's
  int values_at, value_bytes;
  int barriers_at, missing_at, total;

  FULMEN_ALGORITHM static TmaDecodeLayout of(int query_dims, int key_dims, int value_dims,
                                             int block_n, int buffers) {
    TmaDecodeLayout l{};
    l.key_bytes = block_n * 2 * key_dims;
    l.value_bytes = block_n * 2 * value_dims;
    l.keys_at = kRows * 2 * query_dims;
    l.values_at = l.keys_at + buffers * l.key_bytes;
    l.barriers_at = l.values_at + buffers * l.value_bytes;
    l.missing_at = l.barriers_at + (2 + 4 * buffers) * kBarrierBytes;
    l.total = l.missing_at + kBarrierBytes;
    return l;
  }
};

}  // namespace fulmen::kernels
