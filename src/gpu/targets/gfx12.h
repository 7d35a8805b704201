// RDNA4: v_wmma of 16 x 16 x 16, wave32.
#pragma once

#include <array>

#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace gfx12 {

// As gfx11's: 8 waves share the way of a tile to LDS; with head_dim 256 outputs take half the registers, and Q waits in LDS.
inline constexpr std::array kPrefill{PrefillShape{64, 128, 32, 8, 2, false, 1, 1}, PrefillShape{128, 128, 32, 8, 1, false, 1, 1},
                                     PrefillShape{256, 64, 16, 4, 1, true, 1, 1}};

inline constexpr std::array kBackward{
    BackwardShapes{64, {128, 32, 8, 1, false, 1, 1}, {128, 32, 8, 1, false, 1, 1}, false, 256, 4},
    BackwardShapes{
        128, {128, 32, 8, 1, false, 1, 1}, {64, 16, 4, 1, true, 1, 1}, false, 256, 3, 3, BackwardShape{128, 16, 8, 1, false, 1, 1}},
    BackwardShapes{256, {32, 16, 2, 1, true, 1, 1, true}, {32, 16, 2, 1, true, 1, 1, true}, true},
};

// k, q and dout lie twice in 64 KiB of LDS, which ends the head dims.
inline constexpr std::array kShortBackward{ShortBackwardShape{32, 1, 1}, ShortBackwardShape{64, 1, 1, true}};

inline constexpr std::array<std::string_view, 1> kTestChips{"gfx1201"};

}  // namespace gfx12

inline constexpr Target kGfx12{
    .name = "gfx12",
    .vendor = Vendor::amd,
    .mma_k = 16,
    .transposed_values = true,
    .decode = DecodeTiles{.min_split_keys = 512, .wave_head_dim_v = 128},  // a guess
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 16, .shapes = gfx12::kPrefill},
    .backward = BackwardTiles{.max_bias_dim = 64, .shapes = gfx12::kBackward},
    .short_backward = ShortBackwardTiles{.shapes = gfx12::kShortBackward},
    .test_chips = gfx12::kTestChips,
    .loop_budget = LoopBudget{.vector = 1500, .occupancy = 6, .keys_lds = 700},
};

}  // namespace fulmen::gpu
