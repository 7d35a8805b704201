// No matrix instructions: fp32 on every chip, and chips of which no matrix instructions are known.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu {

inline constexpr Target kPortable{
    .name = "portable",
    .vendor = {},
    .portable = PortableTiles{.block_m = 64, .block_n = 64, .chunk = 32, .workgroup = 256},
    .decode_portable =
        DecodePortableTiles{.waves = 8, .block_n = 4, .block_m = 8, .narrow_above = 128, .most_rows = 16, .min_split_keys = 128},
};

}  // namespace fulmen::gpu
