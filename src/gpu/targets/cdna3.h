// CDNA3: v_mfma of 16 x 16 x 16, two for an operand, wave64.
#pragma once

#include "gpu/targets/fp32/cdna3.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace cdna3 {

// Two waves a SIMD: the compiler then keeps accumulators among the ordinary registers and moves
// nothing.
inline constexpr PrefillShape kPrefill[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2},
    {.max_head_dim = 256, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1, .min_waves = 2},
    // Two tiles of 16 keys have room in LDS, not one of 32.
    {.max_head_dim = 512, .block_m = 128, .block_n = 16, .waves = 8, .buffers = 1, .min_waves = 2},
    {.max_head_dim = 576, .block_m = 64, .block_n = 16, .waves = 4, .buffers = 1},
};

// Products of 32 x 32 go in turns of 32 keys, and two tiles of 64 keys have no room in LDS.
inline constexpr PrefillShape kManyPlainPrefill[]{
    kPrefill[0],
    {.max_head_dim = 128, .block_m = 256, .block_n = 64, .waves = 8, .buffers = 1, .min_waves = 2},
};

// Codes of keys, of which less is in flight.
inline constexpr PrefillShape kPrefillCodes[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 2, .min_waves = 2},
    kPrefill[1],
    kPrefill[2],
};

// 32 rows a wave: each operand that comes from LDS serves two products.
inline constexpr BackwardShape kPlainRows{
    .block_m = 128, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2};
inline constexpr BackwardShapes kBackward[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2},
     .keys = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2},
     .plain_queries = kPlainRows,
     .plain_keys = kPlainRows},
    {.max_head_dim = 128,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2},
     .keys = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
     .plain_queries = BackwardShape{.block_m = 128,
                                    .block_n = 32,
                                    .waves = 4,
                                    .buffers = 1,
                                    .min_waves = 2,
                                    .direct_rows = true},
     // LDS has room for one tile of columns that two waves of a SIMD share, not for two.
     .plain_keys =
         BackwardShape{.block_m = 128, .block_n = 32, .waves = 8, .buffers = 1, .min_waves = 2}},
    {.max_head_dim = 256,
     .queries = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1},
     .keys = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1}},
    // A wave's rows and its sums of one gradient take 256 registers.
    {.max_head_dim = 512,
     .queries = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1},
     .keys = {.block_m = 64, .block_n = 16, .waves = 4, .buffers = 1},
     .split_keys = true},
};

// k, q and dout lie twice in 64 KiB of LDS, which ends the head dims.
inline constexpr ShortBackwardShape kShortBackward[]{
    {.max_head_dim = 64, .buffers = 1, .min_workgroups = 1}};

inline constexpr LatentShape kLatent[]{{.waves = 4, .min_waves = 1}, {.waves = 8, .min_waves = 2}};

// Half of the registers are accumulators.
inline constexpr ChipFacts kChips[]{
    {.arch = "gfx942",
     .wave_size = 64,
     .vector_registers = 512,
     .register_file = 512 * 64,
     .pair_products = true,
     .products = "Instinct MI300, MI325"},
};

inline constexpr std::string_view kTestChips[]{"gfx942"};

}  // namespace cdna3

inline constexpr Target kCdna3{
    .name = "cdna3",
    .vendor = Vendor::amd,
    .mma_k = 32,
    .transposed_values = true,
    .decode = DecodeTiles{.min_split_keys = 512, .wave_head_dim_v = 128},  // a guess
    .decode_latent = DecodeLatentTiles{.block_n = 16, .shapes = cdna3::kLatent},
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 16,
                            .wave_dims = 576,
                            .plain_tile = 32,
                            .plain_keys = 64,
                            .shapes = cdna3::kPrefill,
                            .many_plain_shapes = cdna3::kManyPlainPrefill},
    .prefill_fp32 = PrefillFp32Tiles{.value_dims = 16, .shapes = cdna3::kPrefillFp32},
    .prefill_int8 = PrefillTiles{.value_dims = 16, .shapes = cdna3::kPrefillCodes},
    .prefill_e4m3 = PrefillTiles{.value_dims = 16, .shapes = cdna3::kPrefillCodes},
    .backward = BackwardTiles{.max_bias_dim = 128, .shapes = cdna3::kBackward},
    .bias_gradient = BiasGradientTiles{.shapes = kCdna3BiasGradient},
    .backward_fp32 = BackwardFp32Tiles{.value_dims = 16, .shapes = cdna3::kBackwardFp32},
    .short_backward = ShortBackwardTiles{.shapes = cdna3::kShortBackward},
    .chips = cdna3::kChips,
    .test_chips = cdna3::kTestChips,
    .loop_budget = LoopBudget{.vector = 700, .occupancy = 2, .keys_lds = 400},
};

}  // namespace fulmen::gpu
