// What kernels/forward/prefill_fp32.h needs to know of a target.
#pragma once

#include <span>

#include "gpu/launch/prefill_tiles.h"

namespace fulmen::gpu {

// The first shape for the head dims whose workgroups (min_workgroups of them) the chip's LDS holds.
struct PrefillFp32Tiles {
  int value_dims;  // head_dim_v is rounded up to a multiple of them
  std::span<const PrefillShape> shapes;
};

}  // namespace fulmen::gpu
