// NVIDIA's sm_90a: warpgroup products (wgmma) beside all that sm80 has. Numbers are measured on an
// H200 or an H100.
#pragma once

#include "gpu/targets/shapes/sm90_prefill_fp8.h"
#include "gpu/targets/shapes/sm90_prefill_tma.h"
#include "gpu/targets/shapes/sm90_prefill_tma_modified.h"
#include "gpu/targets/sm80.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace sm90 {

// docs/lab/nvidia_forward.md.
inline constexpr PrefillWgmmaShape kPrefillWgmma[]{
    // Larger tiles serve more products.
    {.max_head_dim = 64, .min_keys = 4096, .warpgroups = 3, .block_n = 128},
    // Two workgroups a multiprocessor hide each other's start and end.
    {.max_head_dim = 64, .warpgroups = 2, .block_n = 64, .min_workgroups = 2},
    {.max_head_dim = 128, .warpgroups = 3, .block_n = 64},
    {.max_head_dim = 256, .warpgroups = 2, .block_n = 64},
};

inline constexpr DecodeTmaShape kDecodeTma[]{
    {.max_head_dim = 64, .block_n = 64, .buffers = 4, .min_workgroups = 3},
    {.max_head_dim = 128, .block_n = 64, .buffers = 3, .min_workgroups = 2},
    {.max_head_dim = 256, .block_n = 64, .buffers = 3, .min_workgroups = 1},
};

inline constexpr BackwardWgmmaShapes kBackwardWgmma[]{
    {.max_head_dim = 64,
     .queries = {.block_m = 128, .buffers = 4, .min_workgroups = 2},
     .keys = {.block_m = 192, .buffers = 4},
     .modified_keys = {.block_m = 128, .buffers = 4}},
    {.max_head_dim = 128,
     .queries = {.block_m = 128, .buffers = 4},
     .keys = {.block_m = 128, .buffers = 4},
     .modified_keys = {.block_m = 128, .buffers = 4}},
    {.max_head_dim = 256,
     .queries = {.block_m = 128, .buffers = 2, .second_early = false},
     .keys = {.block_m = 128, .buffers = 2, .second_early = false},
     .modified_keys = {.block_m = 128, .buffers = 2, .second_early = false},
     .split_keys = true,
     .values = {.block_m = 128, .buffers = 2}},
};

inline constexpr ChipFacts kChips[]{
    {.arch = "sm_90a",
     .lds_bytes = 227 * kKiB,
     .vector_registers = 255,
     .register_file = 65536,
     .multiplies_e4m3 = false,
     .products = "H100, H200"},
};

inline constexpr std::string_view kTestChips[]{"sm_90a"};

}  // namespace sm90

inline constexpr Target kSm90{
    .name = "sm90",
    .vendor = Vendor::nvidia,
    .extends = &kSm80,
    .mma_k = 32,
    .panel_columns = 64,
    .prefill_wgmma = PrefillWgmmaTiles{.shapes = sm90::kPrefillWgmma},
    .decode_tma = DecodeTmaTiles{.shapes = sm90::kDecodeTma, .min_split_keys = 256},
    .prefill_tma = PrefillTmaTiles{.modified = sm90::kPrefillTmaModified,
                                   .rows = sm90::kPrefillTma,
                                   .few = sm90::kPrefillTmaFew},
    .prefill_fp8 = PrefillTmaTiles{.rows = sm90::kPrefillFp8, .few = sm90::kPrefillFp8Few},
    .backward_wgmma = BackwardWgmmaTiles{.block_n = 64, .shapes = sm90::kBackwardWgmma},
    .backward_tma = BackwardTmaTiles{.own_dims = 128,
                                     .block_m = 128,
                                     .block_n = 64,
                                     .buffers = 2,
                                     .narrow_buffers = 4,
                                     .ping_pong = true},
    // One tile of queries in flight while one is computed, or two. Narrow heads need one more,
    // where one warpgroup is behind the other.
    .backward_wgmma_atomic = WgmmaAtomicTiles{.block_m = 128,
                                              .block_n = 64,
                                              .own_dims = 128,
                                              .buffers = 2,
                                              .narrow_buffers = 4,
                                              .band_buffers = 3},
    .chips = sm90::kChips,
    .test_chips = sm90::kTestChips,
};

}  // namespace fulmen::gpu
