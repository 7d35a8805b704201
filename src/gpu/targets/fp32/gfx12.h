// RDNA4: tile shapes of fp32 by parts.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::gfx12 {

// fp32: three planes of parts. Above 64 dims Q's wait in LDS.
inline constexpr PrefillShape kPrefillFp32[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 8},
    {.max_head_dim = 128, .block_m = 32, .block_n = 16, .waves = 2, .queries_in_lds = true},
};

inline constexpr BackwardShape kRowsFp32{
    .block_m = 128, .block_n = 16, .waves = 8, .buffers = 1, .late = true};
inline constexpr BackwardShape kKeysFp32{
    .block_m = 32, .block_n = 16, .waves = 2, .buffers = 1, .rows_in_lds = true, .late = true};
inline constexpr BackwardShapes kBackwardFp32[]{
    {.max_head_dim = 64, .queries = kRowsFp32, .keys = kKeysFp32}};

}  // namespace fulmen::gpu::gfx12
