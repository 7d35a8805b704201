// Tile shapes of kernels/forward/prefill_tma.h on Hopper for a bias, masks and dropout, measured on
// an H200 (docs/lab/nvidia_forward.md). A problem that none is for takes those of
// sm90_prefill_tma.h.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::sm90 {

// What modifies scores takes time between products, which three small workgroups hide, and
// registers, of which three warpgroups have too few: 512 keys 1.35 times as fast under a mask,
// 512 causal ones 1.24 with dropout and 1.7 with a bias. Tiles of 128 rows have registers for a
// bias that is loaded ahead.
inline constexpr PrefillTmaRow kPrefillTmaModified[]{
    // All run at once: a third workgroup would take registers for nothing, of which a bias in fp32
    // needs more (1 x 768, 16x24: 27.7 us for 23.1).
    {.max_head_dim = 32,
     .band = false,
     .one_wave = true,
     .with_bias = true,
     .with_mask = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 32,
     .max_keys = 1024,
     .with_bias = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 3}},
    {.max_head_dim = 32,
     .band = false,
     .with_bias = true,
     .shape = {.warpgroups = 3, .block_n = 128, .buffers = 2, .ping_pong = true}},
    {.max_head_dim = 64,
     .max_keys = 1024,
     .with_mask = true,
     .with_dropout = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 3}},
    {.max_head_dim = 64,
     .band = true,
     .max_keys = 1024,
     .with_bias = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 3}},
    {.max_head_dim = 64,
     .max_keys = 256,
     .with_bias = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 3}},
    {.max_head_dim = 64,
     .band = true,
     .with_dropout = true,
     .shape = {.warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2},
     .scheduler = TileScheduler::single_tile},
    {.max_head_dim = 64,
     .band = true,
     .with_bias = true,
     .shape = {.warpgroups = 1, .block_n = 128, .buffers = 2, .min_workgroups = 2},
     .scheduler = TileScheduler::single_tile},
    // Two tiles of keys, as SAM's windows of 196 have: 67.5 to 61.2 us.
    {.max_head_dim = 128,
     .band = false,
     .min_keys = 193,
     .max_keys = 224,
     .with_bias = true,
     .shape = {.warpgroups = 2, .block_n = 112, .buffers = 2, .ping_pong = true}},
    {.max_head_dim = 128,
     .with_bias = true,
     .with_dropout = true,
     .shape = {.warpgroups = 2, .block_n = 128, .buffers = 2, .ping_pong = true}},
};

}  // namespace fulmen::gpu::sm90
