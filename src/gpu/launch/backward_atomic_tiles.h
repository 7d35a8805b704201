// What kernels/backward/backward_atomic.h needs to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

// block_m keys, block_n queries. The first shape of a head dim counts that the chip's LDS holds.
struct AtomicShape {
  int max_head_dim;
  int block_m, block_n, waves;
  int buffers;
  int dim_groups;  // waves that share their keys, which stay in LDS then
  int min_workgroups = 1;
};
struct AtomicTiles {
  std::span<const AtomicShape> shapes;
};

}  // namespace fulmen::gpu
