// What kernels/backward/short_backward.h needs to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

// Tiles for head dims of q and v up to max_head_dim.
struct ShortBackwardShape {
  int max_head_dim;
  int buffers;
  int min_workgroups;
  // Serves lengths and dims that fill their tiles, and rows in 16-byte pieces: others would spill
  // registers.
  bool whole = false;
};
struct ShortBackwardTiles {
  std::span<const ShortBackwardShape> shapes;
};

}  // namespace fulmen::gpu
