// NVIDIA's sm_90a: warpgroup products (wgmma) beside all that sm80 has. Numbers are measured on an H200.
#pragma once

#include <array>

#include "gpu/targets/sm80.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace sm90 {

// docs/lab/nvidia_forward.md: two workgroups a multiprocessor hide each other's start and end, larger tiles serve more products.
inline constexpr std::array kPrefillWgmma{PrefillWgmmaShape{64, 4096, 3, 128, 1}, PrefillWgmmaShape{64, 0, 2, 64, 2},
                                          PrefillWgmmaShape{128, 0, 3, 64, 1}, PrefillWgmmaShape{256, 0, 2, 64, 1}};

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
    .backward_wgmma = BackwardWgmmaTiles{.block_n = 64, .shapes = sm90::kBackwardWgmma},
    // One tile of queries in flight while one is computed, or two. Narrow heads need one more, where one warpgroup is behind the
    // other.
    .backward_wgmma_atomic =
        WgmmaAtomicTiles{.block_m = 128, .block_n = 64, .own_dims = 128, .buffers = 2, .narrow_buffers = 4, .band_buffers = 3},
    .test_chips = sm90::kTestChips,
};

}  // namespace fulmen::gpu
