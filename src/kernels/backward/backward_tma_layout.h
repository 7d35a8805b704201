// Where the tiles of backward/backward_tma.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of backward/backward_tma.h. In panels (targets/sm90/target.h): keys and values; tiles of
// queries and dout; tiles of dS^T. Then tiles of dq in fp32; the row statistics of each buffer; ids
// of the blocks taken; mbarriers.
struct TmaBackwardLayout {
  static constexpr int kBarrierBytes = 8;
  static constexpr int kBlockBytes = 32;  // parts/sequence_blocks.h
  int key_buffers, keys_at, key_bytes, values_at, value_bytes;
  int queries_at, query_bytes, dout_at, dout_bytes;  // a tile's
  // Narrow heads leave registers for the products of one tile beside the scores of the next.
  bool pipelined;
  int gradient_buffers, gradients_at, gradient_bytes;
  int sum_buffers, sum_parts;  // tiles of dq; parts of one, by queries
  int sums_at, sum_bytes;
  int statistics_at, statistic_bytes;
  int blocks_at;
  int barriers_at, total;

  FULMEN_ALGORITHM static TmaBackwardLayout of(int head_dim, int head_dim_v, int block_m,
                                               int block_n, int buffers) {
    TmaBackwardLayout l{};
    // Dims of whole panels.
    const int dims = (head_dim + 63) / 64 * 64, dims_v = (head_dim_v + 63) / 64 * 64;
    l.pipelined = dims + dims_v <= 128;
    l.key_buffers = l.pipelined ? 2 : 1;
    l.key_bytes = block_m * 2 * dims;
    l.values_at = l.key_buffers * l.key_bytes;
    l.value_bytes = block_m * 2 * dims_v;
    l.queries_at = l.values_at + l.key_buffers * l.value_bytes;
    l.query_bytes = block_n * 2 * dims;
    l.dout_at = l.queries_at + buffers * l.query_bytes;
    l.dout_bytes = block_n * 2 * dims_v;
    l.gradients_at = l.dout_at + buffers * l.dout_bytes;
    l.gradient_bytes = block_m * 2 * block_n;
    l.gradient_buffers = l.pipelined ? 3 : 2;
    l.sums_at = l.gradients_at + l.gradient_buffers * l.gradient_bytes;
    // A tile of more than 64 dims takes long to be added: the next block adds to one half when the
    // other is still in flight.
    l.sum_buffers = head_dim > 64 ? 2 : 3;
    l.sum_parts = head_dim > 64 ? 2 : 1;
    l.sum_bytes = block_n * 4 * head_dim;
    l.statistics_at = l.sums_at + l.sum_buffers * l.sum_bytes;
    l.statistic_bytes = 8 * block_n;
    l.blocks_at = l.statistics_at + buffers * l.statistic_bytes;
    l.barriers_at = l.blocks_at + 2 * kBlockBytes;
    // Full and empty for each buffer of keys, queries, dS^T, dq and blocks; dS^T's fences; the
    // loader's own.
    l.total =
        l.barriers_at + (2 * (l.key_buffers + buffers + l.gradient_buffers + l.sum_buffers + 2) +
                         l.gradient_buffers + 1) *
                            kBarrierBytes;
    return l;
  }
};

}  // namespace fulmen::kernels
