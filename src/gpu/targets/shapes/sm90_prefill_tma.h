// Tile shapes of kernels/forward/prefill_tma.h on Hopper, measured on an H200 or an H100
// (docs/lab/nvidia_forward.md). Short sequences take what hides a tile's start and end best, the
// others large tiles.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::sm90 {

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
    // A narrow window leaves a tile few keys, of which large tiles hide many; and most of its time
    // is its begin and end, which three workgroups hide: 1.39 times as fast for a window of 128.
    {.max_head_dim = 64,
     .band = true,
     .max_window = 512,
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
    // Packed sequences of 128 tokens: 1.2 times as fast as 128 rows.
    {.max_head_dim = 64,
     .band = false,
     .max_keys = 256,
     .sequences = true,
     .no_spare_registers = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 3, .min_workgroups = 3}},
    // 2 x 2k, 8 heads of 40: 1.46 times as fast as tiles of 192 rows, which take a second wave.
    {.max_head_dim = 64,
     .band = false,
     .max_keys = 4096,
     .one_wave = true,
     .no_spare_registers = true,
     .shape = {.warpgroups = 4, .block_n = 64, .buffers = 4, .ping_pong = true}},
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
    // MLA's 192 and 128: 1.12 times as fast as tiles of 64 keys.
    {.max_head_dim = 192,
     .max_head_dim_v = 128,
     .no_spare_registers = true,
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

}  // namespace fulmen::gpu::sm90
