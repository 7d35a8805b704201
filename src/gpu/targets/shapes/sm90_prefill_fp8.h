// sm_90a: tile shapes of prefill_fp8.h. Scores, outputs and probabilities take block_n / 2,
// head_dim / 2 and block_n / 8 registers of a lane. Measured on an H200 with 16k queries and keys
// (bench/gpu/fp8.py).
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::sm90 {

inline constexpr PrefillTmaRow kPrefillFp8[]{
    {.max_head_dim = 64,
     .shape = {.warpgroups = 3, .block_n = 128, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    // 1.10 times as fast as 128 x 192, though it spills 24 bytes under a mask.
    {.max_head_dim = 128,
     .shape = {.warpgroups = 3, .block_n = 96, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
    {.max_head_dim = 256,
     .shape = {.warpgroups = 2, .block_n = 96, .buffers = 2, .ping_pong = true},
     .scheduler = TileScheduler::dynamic_persistent},
};
// A warpgroup a tile, where there are few of them.
inline constexpr PrefillTmaRow kPrefillFp8Few[]{
    {.max_head_dim = 128,
     .shape = {.warpgroups = 1, .block_n = 128, .buffers = 2, .min_workgroups = 2}},
    {.max_head_dim = 256,
     .shape = {.warpgroups = 1, .block_n = 32, .buffers = 2, .min_workgroups = 2}},
};

}  // namespace fulmen::gpu::sm90
