// Where the tiles of backward/backward_wgmma_atomic.h lie in LDS, in bytes: the same formulas for
// the host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of backward_wgmma_atomic.h, all in panels (targets/sm90/target.h): keys and values; tiles of
// queries, dout and their numbers; dS^T, and P^T where warpgroups share keys, else dS^T of two
// tiles.
struct WarpgroupAtomicLayout {
  int keys_at, values_at;
  int queries_at, buffer_bytes;  // the first of the tiles
  int dout_at;                   // in a buffer
  int gradients_at, gradient_bytes;
  int probabilities_at;  // or dS^T of every second tile
  int numbers_at, number_bytes, total;

  FULMEN_ALGORITHM static WarpgroupAtomicLayout of(int head_dim, int head_dim_v, int block_m,
                                                   int block_n, int buffers) {
    WarpgroupAtomicLayout l{};
    l.values_at = block_m * 2 * head_dim;
    l.queries_at = l.values_at + block_m * 2 * head_dim_v;
    l.dout_at = block_n * 2 * head_dim;
    l.buffer_bytes = l.dout_at + block_n * 2 * head_dim_v;
    l.gradients_at = l.queries_at + buffers * l.buffer_bytes;
    l.gradient_bytes = block_m * 2 * block_n;
    l.probabilities_at = l.gradients_at + l.gradient_bytes;
    l.numbers_at = l.probabilities_at + l.gradient_bytes;
    l.number_bytes = 8 * block_n;
    l.total = l.numbers_at + buffers * l.number_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
