// No matrix instructions: fp32 on every chip, and chips that have none, or of which none are known.
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
    {.arch = "gfx906",
     .wave_size = 64,
     .register_file = 256 * 64,
     .pair_products = true,
     .products = "Radeon VII, Instinct MI50, MI60"},
    {.arch = "gfx1010", .register_file = 1024 * 32, .products = "RX 5700, 5600"},
    {.arch = "gfx1011",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon Pro V520"},
    {.arch = "gfx1012",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "RX 5500, 5300"},
    {.arch = "gfx1013", .register_file = 1024 * 32, .products = "BC-250"},
    {.arch = "gfx1030",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "RX 6900, 6800"},
    {.arch = "gfx1031", .register_file = 1024 * 32, .pair_products = true, .products = "RX 6700"},
    {.arch = "gfx1032", .register_file = 1024 * 32, .pair_products = true, .products = "RX 6600"},
    {.arch = "gfx1033",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Steam Deck"},
    {.arch = "gfx1034",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "RX 6500, 6400"},
    {.arch = "gfx1035",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon 680M, 660M"},
    {.arch = "gfx1036",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon Graphics (Ryzen 7000)"},
};

// A chip of wave32 and one of wave64.
inline constexpr std::string_view kTestChips[]{"gfx1030", "gfx906"};

}  // namespace portable

inline constexpr Target kPortable{
    .name = "portable",
    .vendor = {},
    .portable =
        PortableTiles{.block_m = 64, .block_n = 64, .workgroup = 256, .most_lds_bytes = 64 * kKiB},
    .decode_portable = DecodePortableTiles{.workgroup = 256,
                                           .block_n = 4,
                                           .block_m = 8,
                                           .narrow_above = 128,
                                           .most_rows = 16,
                                           .min_split_keys = 128},
    .chips = portable::kChips,
    .test_chips = portable::kTestChips,
};

}  // namespace fulmen::gpu
