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
inline constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
inline constexpr std::array kPrefillTma{
    PrefillTmaRow{64, true, 1024, 1024, false, true, {1, 64, 3, 3, false}, GoesOn::by_claims},
    PrefillTmaRow{64, true, 0, 1023, false, true, {1, 64, 3, 3, false}, GoesOn::by_steps},
    PrefillTmaRow{64, true, 1025, 4096, true, true, {4, 64, 4, 1, true}, GoesOn::by_claims},
    PrefillTmaRow{64, false, 0, 2047, true, true, {4, 64, 4, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{64, true, 0, kMost, true, false, {3, 128, 2, 1, true}, GoesOn::by_claims},
    PrefillTmaRow{64, false, 0, kMost, true, false, {3, 128, 2, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{64, {}, 0, kMost, false, false, {2, 128, 2, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{128, false, 8192, kMost, true, false, {3, 80, 2, 1, true}, GoesOn::no},
    PrefillTmaRow{128, false, 2048, 8191, true, false, {3, 80, 2, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{128, false, 0, 2047, true, false, {3, 64, 2, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{128, true, 2048, kMost, true, false, {3, 80, 2, 1, true}, GoesOn::by_claims},
    PrefillTmaRow{128, {}, 8192, kMost, false, false, {2, 128, 2, 1, true}, GoesOn::no},
    PrefillTmaRow{128, {}, 0, kMost, false, false, {2, 128, 2, 1, true}, GoesOn::by_steps},
    PrefillTmaRow{256, true, 8192, kMost, false, false, {2, 64, 2, 1, true}, GoesOn::by_claims},
    PrefillTmaRow{256, {}, 0, kMost, false, false, {2, 64, 2, 1, true}, GoesOn::by_steps},
};
inline constexpr std::array kPrefillTmaFew{PrefillTmaRow{64, {}, 0, kMost, false, false, {1, 128, 2, 2, false}, GoesOn::by_steps},
                                           PrefillTmaRow{128, {}, 0, kMost, false, false, {1, 64, 2, 2, false}, GoesOn::by_steps},
                                           PrefillTmaRow{256, {}, 0, kMost, false, false, {1, 32, 2, 2, false}, GoesOn::by_steps}};

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
