// RDNA3 and RDNA3.5: tile shapes of fp32 by parts.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::gfx11 {

// fp32: three planes of parts, which would be twice in registers. Q's wait in LDS.
inline constexpr PrefillShape kPrefillFp32[]{
    {.max_head_dim = 64, .block_m = 64, .block_n = 32, .waves = 4, .queries_in_lds = true},
    {.max_head_dim = 128, .block_m = 32, .block_n = 16, .waves = 2, .queries_in_lds = true},
};

inline constexpr BackwardShape kRowsFp32{
    .block_m = 32, .block_n = 16, .waves = 2, .buffers = 1, .rows_in_lds = true, .late = true};
inline constexpr BackwardShapes kBackwardFp32[]{
    {.max_head_dim = 64, .queries = kRowsFp32, .keys = kRowsFp32}};

}  // namespace fulmen::gpu::gfx11
