// NVIDIA's sm_90a: warpgroup products (wgmma) beside all that sm80 has. Numbers are measured on an
// H200 or an H100.
#pragma once

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

// docs/lab/nvidia_forward.md, 2026-11-25 to 2026-11-26. Short sequences take what hides a tile's
// start and end best, the others large tiles.
inline constexpr PrefillTmaRow kPrefillTma[]{
    // A consumer of three small workgroups has 128 registers. The 104 of two workgroups of 128 rows
    // are too few: ptxas then serializes wgmma. The tile counter gains 6 % at 1024 keys, and loses
    // 14 % at 512.
    {.max_head_dim = 64,
     .band = true,
     .min_keys = 1024,
     .max_keys = 1024,
     .no_spare_registers = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 3, .min_workgroups = 3},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 64,
     .band = true,
     .max_keys = 1023,
     .no_spare_registers = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 3, .min_workgroups = 3}},
    // Four warpgroups of 112 registers. Those that compute a bias spill.
    {.max_head_dim = 64,
     .band = true,
     .min_keys = 1025,
     .max_keys = 4096,
     .skip_if_tail_wave = true,
     .no_spare_registers = true,
     .shape = {.warpgroups = 4, .block_n = 64, .buffers = 4, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 64,
     .band = false,
     .max_keys = 2047,
     .skip_if_tail_wave = true,
     .no_spare_registers = true,
     .shape = {.warpgroups = 4, .block_n = 64, .buffers = 4, .ping_pong = true}},
    // Better than four warpgroups for many keys.
    {.max_head_dim = 64,
     .band = true,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 128, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 64,
     .band = false,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 128, .buffers = 2, .ping_pong = true}},
    {.max_head_dim = 64,
     .shape = {.warpgroups = 2, .block_n = 128, .buffers = 2, .ping_pong = true}},
    // Without a band, a single tile is 3 % faster than persistent workgroups from 8192 keys on.
    {.max_head_dim = 128,
     .band = false,
     .min_keys = 8192,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 80, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::single_tile},
    {.max_head_dim = 128,
     .band = false,
     .min_keys = 2048,
     .max_keys = 8191,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 80, .buffers = 2, .ping_pong = true}},
    {.max_head_dim = 128,
     .band = false,
     .max_keys = 2047,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 64, .buffers = 2, .ping_pong = true}},
    // The tile counter gains 2 to 3 %.
    {.max_head_dim = 128,
     .band = true,
     .min_keys = 2048,
     .skip_if_tail_wave = true,
     .shape = {.warpgroups = 3, .block_n = 80, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 128,
     .min_keys = 8192,
     .shape = {.warpgroups = 2, .block_n = 128, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::single_tile},
    {.max_head_dim = 128,
     .shape = {.warpgroups = 2, .block_n = 128, .buffers = 2, .ping_pong = true}},
    // The tile counter gains 5 to 6 %.
    {.max_head_dim = 256,
     .band = true,
     .min_keys = 8192,
     .shape = {.warpgroups = 2, .block_n = 64, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 256,
     .shape = {.warpgroups = 2, .block_n = 64, .buffers = 2, .ping_pong = true}},
};
// A warpgroup a tile, where there are few of them.
inline constexpr PrefillTmaRow kPrefillTmaFew[]{
    {.max_head_dim = 64,
     .shape = {.warpgroups = 1, .block_n = 128, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 128,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 256,
     .shape = {.warpgroups = 1, .block_n = 32, .buffers = 2, .min_workgroups = 2}},
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
    .prefill_tma = PrefillTmaTiles{.rows = sm90::kPrefillTma, .few = sm90::kPrefillTmaFew},
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
