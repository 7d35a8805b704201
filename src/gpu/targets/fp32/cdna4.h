// CDNA4: tile shapes of fp32 by parts.
#pragma once

#include "gpu/targets/target.h"

namespace fulmen::gpu::cdna4 {

// fp32: three planes of parts.
inline constexpr PrefillShape kPrefillFp32[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4, .min_waves = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 32, .waves = 8},
    {.max_head_dim = 256, .block_m = 64, .block_n = 32, .waves = 4},
};

inline constexpr BackwardShape kRowsFp32{
    .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1, .min_waves = 2};
inline constexpr BackwardShape kWideRowsFp32{
    .block_m = 64, .block_n = 32, .waves = 4, .buffers = 1};
inline constexpr BackwardShapes kBackwardFp32[]{
    {.max_head_dim = 64, .queries = kRowsFp32, .keys = kRowsFp32},
    {.max_head_dim = 128, .queries = kWideRowsFp32, .keys = kWideRowsFp32}};

}  // namespace fulmen::gpu::cdna4
