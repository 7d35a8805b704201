// What kernels/backward/backward_tma.h and backward_tma_wide.h need to know of a target.
#pragma once

#include <cstdint>

namespace fulmen::gpu {

// Two warpgroups; backward_tma_wide.h: two workgroups.
struct BackwardTmaTiles {
  int64_t own_dims;             // above, two workgroups share a block of keys
  int block_m, block_n;         // keys of a block, queries
  int buffers, narrow_buffers;  // of tiles of queries; of heads of one panel
  bool ping_pong;
};

}  // namespace fulmen::gpu
