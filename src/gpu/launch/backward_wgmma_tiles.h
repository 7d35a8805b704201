// What kernels/backward/backward_wgmma.h needs to know of a target.
#pragma once

#include <cstdint>
#include <span>

namespace fulmen::gpu {

struct BackwardWgmmaShape {
  int block_m;  // 64 rows a warpgroup
  int buffers;  // of tiles of columns
  int min_workgroups = 1;
  bool second_early = true;
};
// Tiles for head dims of q and v up to max_head_dim.
struct BackwardWgmmaShapes {
  int64_t max_head_dim;
  BackwardWgmmaShape queries, keys;
  // Tiles with registers left for addresses: for scores that more than the band modifies, or rows
  // that move by element.
  BackwardWgmmaShape modified_keys;
  // dk and dv by a launch each: together their sums would not fit in registers.
  bool split_keys = false;
  BackwardWgmmaShape values{};  // of dv then
};
struct BackwardWgmmaTiles {
  int block_n;
  std::span<const BackwardWgmmaShapes> shapes;
};

}  // namespace fulmen::gpu
