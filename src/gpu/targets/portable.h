// No matrix instructions: fp32 on every chip, and chips of which no matrix instructions are known.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace portable {

// LDS: the opt-in maximum.
inline constexpr ChipFacts kChips[]{
    {.arch = "sm_70",
     .lds_bytes = 96 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .products = "V100"},
    {.arch = "sm_75",
     .lds_bytes = 64 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .products = "RTX 20, T4"},
};

}  // namespace portable

inline constexpr Target kPortable{
    .name = "portable",
    .vendor = {},
    .portable = PortableTiles{.block_m = 64, .block_n = 64, .chunk = 32, .workgroup = 256},
    .decode_portable = DecodePortableTiles{.waves = 8,
                                           .block_n = 4,
                                           .block_m = 8,
                                           .narrow_above = 128,
                                           .most_rows = 16,
                                           .min_split_keys = 128},
    .chips = portable::kChips,
};

}  // namespace fulmen::gpu
