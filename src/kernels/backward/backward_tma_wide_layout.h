// Where the tiles of backward/backward_tma_wide.h lie in LDS, in bytes: the same formulas for the
// host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of backward/backward_tma_wide.h, of each workgroup of a pair, which has half of the dims. In
// panels: 64 keys, its half of the dims before the other one, and their values, the same; its half
// of the peer's keys; its half of three tiles of queries and of two of dout; the other half of one
// of each; dS^T and P^T of both workgroups' keys. Then how many blocks are added before; the row
// statistics of each tile of queries; ids of the blocks taken; mbarriers.
struct TmaPairLayout {
  static constexpr int kRows = 64, kBarrierBytes = 8, kQueries = 3, kDout = 2;
  int keys_at, values_at, peer_keys_at;
  int half_bytes, half_bytes_v;  // of a tile of keys or queries, of values or dout
  int queries_at, dout_at, other_queries_at, other_dout_at;
  int gradients_at, gradient_bytes;  // of one workgroup's keys: dS^T, then P^T
  int probabilities_at;              // in these
  int sums_at;
  int statistics_at, statistic_bytes;
  int blocks_at, block_bytes;
  int barriers_at, total;

  FULMEN_ALGORITHM static TmaPairLayout of(int head_dim, int head_dim_v) {
    TmaPairLayout l{};
    l.half_bytes = kRows * head_dim;
    l.half_bytes_v = kRows * head_dim_v;
    l.values_at = 2 * l.half_bytes;
    l.peer_keys_at = l.values_at + 2 * l.half_bytes_v;
    l.queries_at = l.peer_keys_at + l.half_bytes;
    l.other_queries_at = l.queries_at + kQueries * l.half_bytes;
    l.dout_at = l.other_queries_at + l.half_bytes;
    l.other_dout_at = l.dout_at + kDout * l.half_bytes_v;
    l.gradients_at = l.other_dout_at + l.half_bytes_v;
    l.probabilities_at = kRows * 2 * kRows;
    l.gradient_bytes = 2 * l.probabilities_at;
    l.sums_at = l.gradients_at + 2 * l.gradient_bytes;
    l.statistics_at = l.sums_at + 16;
    l.statistic_bytes = 8 * kRows;
    l.blocks_at = l.statistics_at + kQueries * l.statistic_bytes;
    l.block_bytes = 32;  // parts/sequence_blocks.h; a copy to the peer has whole pieces of 16
    l.barriers_at = l.blocks_at + 2 * l.block_bytes;
    // Keys, four; full and empty for each tile; empty for the other halves; dS^T, three; dq, two;
    // blocks, two of two.
    l.total = l.barriers_at + (4 + 2 * (kQueries + kDout) + 2 + 3 + 2 + 2 * 2) * kBarrierBytes;
    return l;
  }
};

}  // namespace fulmen::kernels
