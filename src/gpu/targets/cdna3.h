// CDNA3: v_mfma of 16 x 16 x 16, two for an operand, wave64.
#pragma once

#include <array>

#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace cdna3 {

// Two waves a SIMD: the compiler then keeps accumulators among the ordinary registers and moves nothing.
inline constexpr std::array kPrefill{PrefillShape{64, 128, 32, 4, 2, false, 2, 1}, PrefillShape{128, 128, 32, 4, 1, false, 2, 1},
                                     PrefillShape{256, 128, 32, 8, 1, false, 2, 1}};

inline constexpr std::array kBackward{
    BackwardShapes{64, {64, 32, 4, 1, false, 2, 1}, {64, 32, 4, 1, false, 2, 1}, false},
    BackwardShapes{128, {64, 32, 4, 1, false, 2, 1}, {64, 32, 4, 1, false, 1, 1}, false},
    BackwardShapes{256, {64, 16, 4, 1, false, 1, 1}, {64, 16, 4, 1, false, 1, 1}, false},
};

// k, q and dout lie twice in 64 KiB of LDS, which ends the head dims.
inline constexpr std::array kShortBackward{ShortBackwardShape{64, 1, 1}};

inline constexpr std::array<std::string_view, 1> kTestChips{"gfx942"};

}  // namespace cdna3

inline constexpr Target kCdna3{
    .name = "cdna3",
    .vendor = Vendor::amd,
    .mma_k = 32,
    .transposed_values = true,
    .decode = DecodeTiles{.min_split_keys = 512, .wave_head_dim_v = 128},  // a guess
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 16, .shapes = cdna3::kPrefill},
    .backward = BackwardTiles{.max_bias_dim = 128, .shapes = cdna3::kBackward},
    .short_backward = ShortBackwardTiles{.shapes = cdna3::kShortBackward},
    .test_chips = cdna3::kTestChips,
    .loop_budget = LoopBudget{.vector = 700, .occupancy = 2, .keys_lds = 400},
};

}  // namespace fulmen::gpu
