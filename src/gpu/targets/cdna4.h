// CDNA4: v_mfma of 16 x 16 x 32, wave64.
#pragma once

#include "gpu/targets/fp32/cdna4.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace cdna4 {

// 64 keys a tile: half as many turns of the loop as with 32.
inline constexpr PrefillShape kPrefill[]{
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 2,
     .min_waves = 2,
     .plain_waves = 3},
    {.max_head_dim = 128, .block_m = 128, .block_n = 64, .waves = 4, .buffers = 2, .min_waves = 2},
    {.max_head_dim = 256, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 2},
    {.max_head_dim = 576, .block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
};

// 32 rows a wave: each operand that comes from LDS serves two products.
inline constexpr BackwardShape kPlainRows{
    .block_m = 128, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2};
inline constexpr BackwardShapes kBackward[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2},
     .keys = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2},
     .plain_queries = kPlainRows,
     .plain_keys = kPlainRows},
    {.max_head_dim = 128,
     .queries = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2},
     .keys = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 1},
     .plain_queries = kPlainRows},
    {.max_head_dim = 256,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
     .keys = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1}},
    // A wave's rows and its sums of one gradient take 256 registers.
    {.max_head_dim = 512,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
     .keys = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
     .split_keys = true},
};

// k, q and dout lie in LDS once: what products take transposed is read so.
inline constexpr ShortBackwardShape kShortBackward[]{
    {.max_head_dim = 64, .buffers = 1, .min_workgroups = 2},
    {.max_head_dim = 128, .buffers = 1, .min_workgroups = 1},
};

inline constexpr LatentShape kLatent[]{{.waves = 4, .min_waves = 1},
                                       {.waves = 8, .min_waves = 2, .lds_queries = 4}};

// Half of the registers are accumulators.
inline constexpr ChipFacts kChips[]{
    {.arch = "gfx950",
     .wave_size = 64,
     .lds_bytes = 160 * kKiB,
     .lds_reads = {.banks = 64, .interleaves = true},
     .vector_registers = 512,
     .register_file = 512 * 64,
     .pair_products = true,
     .products = "Instinct MI350, MI355"},
};

inline constexpr std::string_view kTestChips[]{"gfx950"};

}  // namespace cdna4

inline constexpr Target kCdna4{
    .name = "cdna4",
    .vendor = Vendor::amd,
    .mma_k = 32,
    .value_depth = 32,
    .transposed_values = true,
    .reads_transposed = true,
    .decode = DecodeTiles{.block_n = 32, .min_split_keys = 512, .wave_head_dim_v = 128},  // a guess
    .decode_latent = DecodeLatentTiles{.block_n = 32, .shapes = cdna4::kLatent},
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 16, .wave_dims = 576, .shapes = cdna4::kPrefill},
    .prefill_fp32 = PrefillFp32Tiles{.value_dims = 16, .shapes = cdna4::kPrefillFp32},
    .prefill_int8 = PrefillTiles{.value_dims = 16, .shapes = usual_heads(cdna4::kPrefill)},
    .prefill_e4m3 = PrefillTiles{.value_dims = 16, .shapes = usual_heads(cdna4::kPrefill)},
    .backward = BackwardTiles{.max_bias_dim = 128, .shapes = cdna4::kBackward},
    .bias_gradient = BiasGradientTiles{.shapes = kCdna3BiasGradient},
    .backward_fp32 = BackwardFp32Tiles{.value_dims = 16, .shapes = cdna4::kBackwardFp32},
    .short_backward = ShortBackwardTiles{.shapes = cdna4::kShortBackward},
    .chips = cdna4::kChips,
    .test_chips = cdna4::kTestChips,
    .loop_budget = LoopBudget{.vector = 700, .occupancy = 2, .keys_lds = 460},
};

}  // namespace fulmen::gpu
