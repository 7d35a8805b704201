// RDNA3 and RDNA3.5: v_wmma of 16 x 16 x 16, wave32. Both halves of a wave hold the same operands.
#pragma once

#include "gpu/targets/fp32/gfx11.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace gfx11 {

// 8 waves share the way of a tile to LDS.
inline constexpr PrefillShape kPrefill[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
    // Outputs take half the registers, and Q waits in LDS.
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 16,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true},
    // As many rows as LDS holds beside a tile of keys.
    {.max_head_dim = 576,
     .block_m = 32,
     .block_n = 16,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true},
};

// Operands are there twice: rows of more than 64 dims wait in LDS.
inline constexpr BackwardShapes kBackward[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
     .keys = {.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
     .narrow_above = 16,
     .split_from = 4},
    {.max_head_dim = 128,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1, .rows_in_lds = true},
     .keys = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1, .rows_in_lds = true},
     .split_from = 3},
    {.max_head_dim = 256,
     .queries = {.block_m = 32,
                 .block_n = 16,
                 .waves = 2,
                 .buffers = 1,
                 .rows_in_lds = true,
                 .late = true},
     .keys = {.block_m = 32,
              .block_n = 16,
              .waves = 2,
              .buffers = 1,
              .rows_in_lds = true,
              .late = true},
     .split_keys = true},
};

// k, q and dout lie twice in 64 KiB of LDS, which ends the head dims.
inline constexpr ShortBackwardShape kShortBackward[]{
    {.max_head_dim = 64, .buffers = 1, .min_workgroups = 1, .whole = true}};

// Larger parts have 1536 x 32 registers a SIMD, small ones 1024 x 32.
inline constexpr ChipFacts kChips[]{
    {.arch = "gfx1100", .register_file = 1536 * 32, .pair_products = true, .products = "RX 7900"},
    {.arch = "gfx1101",
     .register_file = 1536 * 32,
     .pair_products = true,
     .products = "RX 7800, 7700"},
    {.arch = "gfx1102", .register_file = 1024 * 32, .pair_products = true, .products = "RX 7600"},
    {.arch = "gfx1103",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon 780M, 760M"},
    {.arch = "gfx1150",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon 890M (Ryzen AI 300)"},
    {.arch = "gfx1151",
     .register_file = 1536 * 32,
     .pair_products = true,
     .products = "Radeon 8060S (Ryzen AI Max)"},
    {.arch = "gfx1152",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon 860M, 840M"},
    {.arch = "gfx1153",
     .register_file = 1024 * 32,
     .pair_products = true,
     .products = "Radeon 820M"},
};

inline constexpr std::string_view kTestChips[]{"gfx1100", "gfx1151"};

}  // namespace gfx11

inline constexpr Target kGfx11{
    .name = "gfx11",
    .vendor = Vendor::amd,
    .mma_k = 16,
    .transposed_values = true,
    .operand_copies = 2,
    // 512 is a guess.
    .decode = DecodeTiles{.min_split_keys = 512,
                          .wave_head_dim_v = 128,
                          .wide_wave_head_dim_v = 64,
                          .most_far_bias_dim = 96},
    // A lane has all keys of its dims: V before it is needed takes registers that are not there.
    .short_sequences = ShortTiles{.max_head_dim = 128,
                                  .early_values = 64 * 32,
                                  .early_beside_mask = false,
                                  .early_odd_dims = false,
                                  .early_is_tuned = false,
                                  .most_odd_dim = 64,
                                  .most_odd_keys = 64},
    .prefill = PrefillTiles{.value_dims = 16, .shapes = gfx11::kPrefill},
    .prefill_fp32 = PrefillFp32Tiles{.value_dims = 16, .shapes = gfx11::kPrefillFp32},
    .prefill_int8 = PrefillTiles{.value_dims = 16, .shapes = usual_heads(gfx11::kPrefill)},
    .backward = BackwardTiles{.max_bias_dim = 32, .stores_bias = false, .shapes = gfx11::kBackward},
    .bias_gradient = BiasGradientTiles{.shapes = kGfx11BiasGradient},
    .backward_fp32 = BackwardFp32Tiles{.value_dims = 16, .shapes = gfx11::kBackwardFp32},
    .short_backward = ShortBackwardTiles{.shapes = gfx11::kShortBackward},
    .chips = gfx11::kChips,
    .test_chips = gfx11::kTestChips,
    .loop_budget = LoopBudget{.vector = 2300, .occupancy = 5, .keys_lds = 1850},
};

}  // namespace fulmen::gpu
