// NVIDIA from sm_80: mma.sync of 16 x 8 x 16, ldmatrix, cp.async. Numbers are measured on an H200.
#pragma once

#include "gpu/targets/fp32/sm80.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace sm80 {

// 32 rows a wave halve what it reads from LDS for a product. Narrower tiles of keys serve chips
// with less LDS.
inline constexpr PrefillShape kPrefill[]{
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 2,
     .min_workgroups = 2},
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .min_workgroups = 2},
    {.max_head_dim = 128,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true,
     .min_workgroups = 2},
    {.max_head_dim = 128,
     .block_m = 128,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true,
     .min_workgroups = 2},
    {.max_head_dim = 128,
     .block_m = 128,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true},
    // Outputs of 16 rows fill half the registers, and a multiprocessor has one workgroup, whose
    // start and end nothing else hides: a persistent kernel where it has little to do.
    {.max_head_dim = 256,
     .block_m = 128,
     .block_n = 64,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true,
     .persistent = true},
    {.max_head_dim = 256,
     .block_m = 128,
     .block_n = 32,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true,
     .persistent = true},
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true,
     .persistent = true},
    {.max_head_dim = 576,
     .block_m = 64,
     .block_n = 32,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true},
    {.max_head_dim = 576,
     .block_m = 64,
     .block_n = 32,
     .waves = 8,
     .buffers = 1,
     .queries_in_lds = true},
    {.max_head_dim = 576,
     .block_m = 32,
     .block_n = 16,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true},
};
// Quantized keys and values are in flight to registers, where 32 rows a wave of 128 dims would
// spill.
inline constexpr PrefillShape kPrefillQuantized[]{
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .min_workgroups = 2},
    {.max_head_dim = 128,
     .block_m = 128,
     .block_n = 64,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true},
    {.max_head_dim = 256,
     .block_m = 128,
     .block_n = 32,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true},
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true},
    {.max_head_dim = 576,
     .block_m = 64,
     .block_n = 32,
     .waves = 8,
     .buffers = 1,
     .queries_in_lds = true},
    {.max_head_dim = 576,
     .block_m = 32,
     .block_n = 16,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true},
};
// Codes: tiles of half the bytes, which 99 KiB of LDS hold. 64 keys of 128 dims spill.
inline constexpr PrefillShape kPrefillE4m3[]{
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 2,
     .min_workgroups = 2},
    {.max_head_dim = 128,
     .block_m = 128,
     .block_n = 32,
     .waves = 4,
     .buffers = 2,
     .queries_in_lds = true,
     .min_workgroups = 2},
    {.max_head_dim = 256,
     .block_m = 128,
     .block_n = 64,
     .waves = 8,
     .buffers = 2,
     .queries_in_lds = true},
};
// Boards: registers for many workgroups at once, whose loads are in flight.
inline constexpr PrefillShape kPrefillBoards[]{
    {.max_head_dim = 32,
     .block_m = 64,
     .block_n = 64,
     .waves = 4,
     .buffers = 1,
     .min_workgroups = 6},
    {.max_head_dim = 64,
     .block_m = 64,
     .block_n = 64,
     .waves = 4,
     .buffers = 1,
     .min_workgroups = 3},
    {.max_head_dim = 128,
     .block_m = 64,
     .block_n = 64,
     .waves = 4,
     .buffers = 1,
     .queries_in_lds = true,
     .min_workgroups = 3},
};

// docs/lab/nvidia_boards.md.
inline constexpr BoardShape kBoards[]{
    // So little work that a workgroup a board spends a fifth of its time on its own start and end.
    {.head_dim = 32, .workgroups = 4, .runs = true},
    {.head_dim = 64, .workgroups = 5},
    {.head_dim = 96, .workgroups = 4},
    {.head_dim = 128, .workgroups = 3},
};

inline constexpr BackwardShapes kBackward[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 128, .block_n = 64, .waves = 4, .buffers = 2, .min_workgroups = 2},
     .keys = {.block_m = 128, .block_n = 32, .waves = 4, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 128,
     .queries = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 2, .min_workgroups = 2},
     .keys = {.block_m = 64, .block_n = 64, .waves = 4, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 256,
     .queries = {.block_m = 64, .block_n = 32, .waves = 4, .buffers = 1, .rows_in_lds = true},
     .keys = {.block_m = 128, .block_n = 64, .waves = 8, .buffers = 2},
     .split_keys = true},
};

// Two workgroups whose registers are enough took less time than three (docs/lab/nvidia_decode.md).
inline constexpr DecodeRingShape kDecodeRings[]{
    {.max_head_dim = 64, .waves = 4, .block_n = 32, .buffers = 3, .min_workgroups = 3},
    {.max_head_dim = 128, .waves = 4, .block_n = 32, .buffers = 2, .min_workgroups = 2},
    {.max_head_dim = 256, .waves = 4, .block_n = 16, .buffers = 3, .min_workgroups = 2},
};

// Fewer keys or buffers serve chips with less LDS.
inline constexpr AtomicShape kAtomic[]{
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 2,
     .dim_groups = 1,
     .min_workgroups = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 64, .waves = 8, .buffers = 2, .dim_groups = 2},
    {.max_head_dim = 128, .block_m = 64, .block_n = 64, .waves = 4, .buffers = 1, .dim_groups = 2},
    {.max_head_dim = 256, .block_m = 64, .block_n = 64, .waves = 8, .buffers = 2, .dim_groups = 4},
    {.max_head_dim = 256, .block_m = 64, .block_n = 64, .waves = 8, .buffers = 1, .dim_groups = 4},
};

inline constexpr ShortBackwardShape kShortBackward[]{
    {.max_head_dim = 32, .buffers = 2, .min_workgroups = 3},
    {.max_head_dim = 64, .buffers = 2, .min_workgroups = 2},
    {.max_head_dim = 128, .buffers = 1, .min_workgroups = 2},
};

// LDS: the opt-in maximum. Registers are those of a multiprocessor. sm_90 and sm_100 take mma.sync
// of E4M3, too, but ptxas makes conversions and products of fp16 of it.
inline constexpr ChipFacts kChips[]{
    {.arch = "sm_80",
     .lds_bytes = 163 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .multiplies_e4m3 = false,
     .products = "A100"},
    {.arch = "sm_86",
     .lds_bytes = 99 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .multiplies_e4m3 = false,
     .products = "RTX 30"},
    {.arch = "sm_89",
     .lds_bytes = 99 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .products = "RTX 40, L40"},
    {.arch = "sm_90",
     .lds_bytes = 227 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .multiplies_e4m3 = false,
     .products = "H100, H200"},
    {.arch = "sm_100",
     .lds_bytes = 227 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .multiplies_e4m3 = false,
     .products = "B200"},
    {.arch = "sm_120",
     .lds_bytes = 99 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .products = "RTX 50"},
};

inline constexpr std::string_view kTestChips[]{"sm_80"};

}  // namespace sm80

inline constexpr Target kSm80{
    .name = "sm80",
    .vendor = Vendor::nvidia,
    .mma_k = 32,
    // Eight waves without a split take 6 to 18 % less time (docs/lab/nvidia_decode.md).
    .decode = DecodeTiles{.min_split_keys = 256,
                          .unsplit_waves = 8,
                          .unsplit_head_dim_v = 128,
                          .paired_head_dim = 64,
                          .wide_wave_head_dim_v = 128,
                          .rings = sm80::kDecodeRings},
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 32,
                            .shapes = sm80::kPrefill,
                            .board_shapes = sm80::kPrefillBoards,
                            .quantized_shapes = sm80::kPrefillQuantized},
    .prefill_fp32 = PrefillFp32Tiles{.value_dims = 32, .shapes = sm80::kPrefillFp32},
    .prefill_int8 = PrefillTiles{.value_dims = 32, .shapes = usual_heads(sm80::kPrefill)},
    .prefill_e4m3 = PrefillTiles{.value_dims = 32, .shapes = sm80::kPrefillE4m3},
    .boards = BoardTiles{.shapes = sm80::kBoards},
    .backward = BackwardTiles{.max_bias_dim = 128, .shapes = sm80::kBackward},
    .bias_gradient = BiasGradientTiles{.shapes = kSm80BiasGradient},
    .backward_fp32 = BackwardFp32Tiles{.value_dims = 32, .shapes = sm80::kBackwardFp32},
    .backward_atomic = AtomicTiles{.shapes = sm80::kAtomic},
    .short_backward = ShortBackwardTiles{.shapes = sm80::kShortBackward},
    .chips = sm80::kChips,
    .test_chips = sm80::kTestChips,
};

}  // namespace fulmen::gpu
