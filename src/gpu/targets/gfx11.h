// RDNA3 and RDNA3.5: v_wmma of 16 x 16 x 16, wave32. Both halves of a wave hold the same operands.
#pragma once

#include <array>

#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace gfx11 {

// 8 waves share the way of a tile to LDS; with head_dim 256 outputs take half the registers, and Q waits in LDS.
inline constexpr std::array kPrefill{PrefillShape{64, 128, 32, 8, 2, false, 1, 1}, PrefillShape{128, 128, 32, 8, 1, false, 1, 1},
                                     PrefillShape{256, 64, 16, 4, 1, true, 1, 1}};

// Operands that are there twice: rows of more than 64 dims wait in LDS.
inline constexpr std::array kBackward{
    BackwardShapes{64, {128, 32, 8, 1, false, 1, 1}, {128, 32, 8, 1, false, 1, 1}, false, 32, 4},
    BackwardShapes{128, {64, 32, 4, 1, true, 1, 1}, {64, 16, 4, 1, true, 1, 1}, false, 256, 3},
    BackwardShapes{256, {32, 16, 2, 1, true, 1, 1, true}, {32, 16, 2, 1, true, 1, 1, true}, true},
};

// k, q and dout lie twice in 64 KiB of LDS, which ends the head dims.
inline constexpr std::array kShortBackward{ShortBackwardShape{64, 1, 1, true}};

inline constexpr std::array<std::string_view, 2> kTestChips{"gfx1100", "gfx1151"};

}  // namespace gfx11

inline constexpr Target kGfx11{
    .name = "gfx11",
    .vendor = Vendor::amd,
    .mma_k = 16,
    .transposed_values = true,
    .operand_copies = 2,
    .decode = DecodeTiles{.min_split_keys = 512, .wave_head_dim_v = 128, .most_far_bias_dim = 96},  // 512 is a guess
    // A lane has all keys of its dims: V before it is needed takes registers that are not there.
    .short_sequences = ShortTiles{.max_head_dim = 128,
                                  .early_values = 64 * 32,
                                  .early_beside_mask = false,
                                  .early_odd_dims = false,
                                  .early_is_tuned = false,
                                  .most_odd_dim = 64,
                                  .most_odd_keys = 64},
    .prefill = PrefillTiles{.value_dims = 16, .shapes = gfx11::kPrefill},
    .backward = BackwardTiles{.max_bias_dim = 32, .shapes = gfx11::kBackward},
    .short_backward = ShortBackwardTiles{.shapes = gfx11::kShortBackward},
    .test_chips = gfx11::kTestChips,
    .loop_budget = LoopBudget{.vector = 2300, .occupancy = 5, .keys_lds = 1850},
};

}  // namespace fulmen::gpu
