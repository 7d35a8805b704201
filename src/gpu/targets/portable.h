// No matrix instructions: fp32 on every chip, and chips of which no matrix instructions are known.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu {

inline constexpr Target kPortable{
    .name = "portable",
    .vendor = {},
    .portable = PortableTiles{.block_m = 64, .block_n = 64, .chunk = 32, .workgroup = 256},
};

}  // namespace fulmen::gpu
