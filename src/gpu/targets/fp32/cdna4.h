// CDNA4: tile shapes of fp32 by parts.
#pragma once

#include "gpu/targets/fp32/cdna3.h"

namespace fulmen::gpu::cdna4 {

// As CDNA3's, but that wide tiles have the 32 keys of a product.
inline constexpr PrefillShape kPrefillFp32[]{
    cdna3::kPrefillFp32[0],
    cdna3::kPrefillFp32[1],
    {.max_head_dim = 256, .block_m = 64, .block_n = 32, .waves = 4},
};

inline constexpr BackwardShape kWideRowsFp32{
    .block_m = 64, .block_n = 32, .waves = 4, .buffers = 1};
inline constexpr BackwardShapes kBackwardFp32[]{
    cdna3::kBackwardFp32[0],
    {.max_head_dim = 128, .queries = kWideRowsFp32, .keys = kWideRowsFp32}};

}  // namespace fulmen::gpu::cdna4
