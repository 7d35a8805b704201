// RDNA4: v_wmma of 16 x 16 x 16, wave32.
#pragma once

#include "gpu/targets/fp32/gfx12.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace gfx12 {

// As gfx11's: 8 waves share the way of a tile to LDS.
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

// Codes: a tile of 32 keys in flight takes the registers of 16 keys of 16 bits.
inline constexpr PrefillShape kPrefillE4m3[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true},
};

inline constexpr BackwardShapes kBackward[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
     .keys = {.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
     .split_from = 4},
    {.max_head_dim = 128,
     .queries = {.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
     .keys = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1, .rows_in_lds = true},
     .split_from = 3,
     .late_from = 3,
     .plain_keys = BackwardShape{.block_m = 128, .block_n = 16, .waves = 8, .buffers = 1}},
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
    {.max_head_dim = 32, .buffers = 1, .min_workgroups = 1},
    {.max_head_dim = 64, .buffers = 1, .min_workgroups = 1, .whole = true},
};

inline constexpr ChipFacts kChips[]{
    {.arch = "gfx1200", .register_file = 1536 * 32, .pair_products = true, .products = "RX 9060"},
    {.arch = "gfx1201", .register_file = 1536 * 32, .pair_products = true, .products = "RX 9070"},
};

inline constexpr std::string_view kTestChips[]{"gfx1201"};

}  // namespace gfx12

inline constexpr Target kGfx12{
    .name = "gfx12",
    .vendor = Vendor::amd,
    .mma_k = 16,
    .transposed_values = true,
    .decode = DecodeTiles{.min_split_keys = 512, .wave_head_dim_v = 128},  // a guess
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 16, .shapes = gfx12::kPrefill},
    .prefill_fp32 = PrefillFp32Tiles{.value_dims = 16, .shapes = gfx12::kPrefillFp32},
    .prefill_int8 = PrefillTiles{.value_dims = 16, .shapes = usual_heads(gfx12::kPrefill)},
    .prefill_e4m3 = PrefillTiles{.value_dims = 16, .shapes = gfx12::kPrefillE4m3},
    .backward = BackwardTiles{.max_bias_dim = 64, .shapes = gfx12::kBackward},
    .bias_gradient = BiasGradientTiles{.shapes = kGfx12BiasGradient},
    .backward_fp32 = BackwardFp32Tiles{.value_dims = 16, .shapes = gfx12::kBackwardFp32},
    .short_backward = ShortBackwardTiles{.shapes = gfx12::kShortBackward},
    .chips = gfx12::kChips,
    .test_chips = gfx12::kTestChips,
    .loop_budget = LoopBudget{.vector = 1500, .occupancy = 6, .keys_lds = 700},
};

}  // namespace fulmen::gpu
