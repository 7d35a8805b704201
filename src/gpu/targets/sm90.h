// NVIDIA's sm_90a: warpgroup products (wgmma) beside all that sm80 has. Numbers are measured on an H200 or an H100.
#pragma once

#include <array>
#include <limits>

#include "gpu/targets/sm80.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace sm90 {

// docs/lab/nvidia_forward.md: two workgroups a multiprocessor hide each other's start and end, larger tiles serve more products.
inline constexpr std::array kPrefillWgmma{PrefillWgmmaShape{64, 4096, 3, 128, 1}, PrefillWgmmaShape{64, 0, 2, 64, 2},
                                          PrefillWgmmaShape{128, 0, 3, 64, 1}, PrefillWgmmaShape{256, 0, 2, 64, 1}};

// docs/lab/nvidia_forward.md, 2026-11-26. Short sequences take what hides a tile's start and end best, the others large tiles.
inline constexpr std::array kPrefillTma{
    PrefillTmaRow{.max_head_dim = 64,
                  .band = true,
                  .min_keys = 1024,
                  .max_keys = 1024,
                  .no_spare_registers = true,
                  .shape = {1, 64, 3, 3, false},
                  .scheduler = TileScheduler::dynamic_persistent},
    PrefillTmaRow{.max_head_dim = 64, .band = true, .max_keys = 1023, .no_spare_registers = true, .shape = {1, 64, 3, 3, false}},
    PrefillTmaRow{.max_head_dim = 64,
                  .band = true,
                  .min_keys = 1025,
                  .max_keys = 4096,
                  .skip_if_tail_wave = true,
                  .no_spare_registers = true,
                  .shape = {4, 64, 4, 1, true},
                  .scheduler = TileScheduler::dynamic_persistent},
    PrefillTmaRow{.max_head_dim = 64,
                  .band = false,
                  .max_keys = 2047,
                  .skip_if_tail_wave = true,
                  .no_spare_registers = true,
                  .shape = {4, 64, 4, 1, true}},
    PrefillTmaRow{.max_head_dim = 64,
                  .band = true,
                  .skip_if_tail_wave = true,
                  .shape = {3, 128, 2, 1, true},
                  .scheduler = TileScheduler::dynamic_persistent},
    PrefillTmaRow{.max_head_dim = 64, .band = false, .skip_if_tail_wave = true, .shape = {3, 128, 2, 1, true}},
    PrefillTmaRow{.max_head_dim = 64, .shape = {2, 128, 2, 1, true}},
    PrefillTmaRow{.max_head_dim = 128,
                  .band = false,
                  .min_keys = 8192,
                  .skip_if_tail_wave = true,
                  .shape = {3, 80, 2, 1, true},
                  .scheduler = TileScheduler::single_tile},
    PrefillTmaRow{.max_head_dim = 128,
                  .band = false,
                  .min_keys = 2048,
                  .max_keys = 8191,
                  .skip_if_tail_wave = true,
                  .shape = {3, 80, 2, 1, true}},
    PrefillTmaRow{.max_head_dim = 128, .band = false, .max_keys = 2047, .skip_if_tail_wave = true, .shape = {3, 64, 2, 1, true}},
    PrefillTmaRow{.max_head_dim = 128,
                  .band = true,
                  .min_keys = 2048,
                  .skip_if_tail_wave = true,
                  .shape = {3, 80, 2, 1, true},
                  .scheduler = TileScheduler::dynamic_persistent},
    PrefillTmaRow{.max_head_dim = 128, .min_keys = 8192, .shape = {2, 128, 2, 1, true}, .scheduler = TileScheduler::single_tile},
    PrefillTmaRow{.max_head_dim = 128, .shape = {2, 128, 2, 1, true}},
    PrefillTmaRow{.max_head_dim = 256,
                  .band = true,
                  .min_keys = 8192,
                  .shape = {2, 64, 2, 1, true},
                  .scheduler = TileScheduler::dynamic_persistent},
    PrefillTmaRow{.max_head_dim = 256, .shape = {2, 64, 2, 1, true}},
};
// A warpgroup a tile, where there are few of them.
inline constexpr std::array kPrefillTmaFew{
    PrefillTmaRow{.max_head_dim = 64, .shape = {1, 128, 2, 2, false}},
    PrefillTmaRow{.max_head_dim = 128, .shape = {1, 64, 2, 2, false}},
    PrefillTmaRow{.max_head_dim = 256, .shape = {1, 32, 2, 2, false}},
};

inline constexpr std::array kDecodeTma{DecodeTmaShape{64, 64, 4, 3}, DecodeTmaShape{128, 64, 3, 2}, DecodeTmaShape{256, 64, 3, 1}};

inline constexpr std::array kBackwardWgmma{
    BackwardWgmmaShapes{64, {128, 4, 2}, {192, 4}, {128, 4}},
    BackwardWgmmaShapes{128, {128, 4}, {128, 4}, {128, 4}},
    BackwardWgmmaShapes{256, {128, 2, 1, false}, {128, 2, 1, false}, {128, 2, 1, false}, true, {128, 2}},
};

inline constexpr std::array<std::string_view, 1> kTestChips{"sm_90a"};

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
    .backward_tma =
        BackwardTmaTiles{.own_dims = 128, .block_m = 128, .block_n = 64, .buffers = 2, .narrow_buffers = 4, .ping_pong = true},
    // One tile of queries in flight while one is computed, or two. Narrow heads need one more, where one warpgroup is behind the
    // other.
    .backward_wgmma_atomic =
        WgmmaAtomicTiles{.block_m = 128, .block_n = 64, .own_dims = 128, .buffers = 2, .narrow_buffers = 4, .band_buffers = 3},
    .test_chips = sm90::kTestChips,
};

}  // namespace fulmen::gpu
