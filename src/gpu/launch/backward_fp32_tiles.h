// What kernels/backward/backward_fp32.h needs to know of a target.
#pragma once

#include <span>

#include "gpu/launch/backward_tiles.h"

namespace fulmen::gpu {

// The first shapes for the head dims whose workgroups (min_workgroups of them) the chip's LDS
// holds.
struct BackwardFp32Tiles {
  int value_dims;  // head_dim_v is rounded up to a multiple of them
  std::span<const BackwardShapes> shapes;
};

}  // namespace fulmen::gpu
