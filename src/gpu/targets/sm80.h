// NVIDIA from sm_80: mma.sync of 16 x 8 x 16, ldmatrix, cp.async. Numbers are measured on an H200.
#pragma once

#include <array>

#include "gpu/targets/target.h"

namespace fulmen::gpu {
namespace sm80 {

// 32 rows a wave halve what it reads from LDS for a product. With head_dim 256 outputs of 16 rows fill half the registers, and a
// multiprocessor has one workgroup, whose start and end nothing else hides: a persistent kernel where it has little to do.
inline constexpr std::array kPrefill{
    PrefillShape{64, 128, 64, 4, 2, false, 1, 2},       PrefillShape{64, 128, 32, 4, 2, false, 1, 2},
    PrefillShape{128, 128, 64, 4, 2, true, 1, 2},       PrefillShape{128, 128, 32, 4, 2, true, 1, 2},
    PrefillShape{128, 128, 32, 4, 2, true, 1, 1},       PrefillShape{256, 128, 64, 8, 2, true, 1, 1, true},
    PrefillShape{256, 128, 32, 8, 2, true, 1, 1, true}, PrefillShape{256, 64, 32, 4, 2, true, 1, 1, true}};
// Boards: registers for many workgroups at once, whose loads are in flight.
inline constexpr std::array kPrefillBoards{PrefillShape{32, 64, 64, 4, 1, false, 1, 6}, PrefillShape{64, 64, 64, 4, 1, false, 1, 3},
                                           PrefillShape{128, 64, 64, 4, 1, true, 1, 3}};

// docs/lab/nvidia_boards.md. With 32 dims a board is so little work that a workgroup a board spends a fifth of its time on its own
// start and end.
inline constexpr std::array kBoards{BoardShape{32, 4, true}, BoardShape{64, 5, false}, BoardShape{96, 4, false},
                                    BoardShape{128, 3, false}};

inline constexpr std::array kBackward{
    BackwardShapes{64, {128, 64, 4, 2, false, 1, 2}, {128, 32, 4, 2, false, 1, 2}, false},
    BackwardShapes{128, {64, 64, 4, 2, false, 1, 2}, {64, 64, 4, 2, false, 1, 2}, false},
    BackwardShapes{256, {64, 32, 4, 1, true, 1, 1}, {128, 64, 8, 2, false, 1, 1}, true},
};

inline constexpr std::array kAtomic{
    AtomicShape{64, 128, 64, 4, 2, 1, 2}, AtomicShape{128, 128, 64, 8, 2, 2, 1}, AtomicShape{128, 64, 64, 4, 1, 2, 1},
    AtomicShape{256, 64, 64, 8, 2, 4, 1}, AtomicShape{256, 64, 64, 8, 1, 4, 1},
};

inline constexpr std::array kShortBackward{ShortBackwardShape{32, 2, 3}, ShortBackwardShape{64, 2, 2},
                                           ShortBackwardShape{128, 1, 2}};

inline constexpr std::array<std::string_view, 1> kTestChips{"sm_80"};

}  // namespace sm80

inline constexpr Target kSm80{
    .name = "sm80",
    .vendor = Vendor::nvidia,
    .mma_k = 32,
    // Eight waves without a split take 6 to 18 % less time (docs/lab/nvidia_decode.md).
    .decode = DecodeTiles{.min_split_keys = 256, .unsplit_waves = 8, .unsplit_head_dim_v = 128, .paired_head_dim = 64},
    .short_sequences = ShortTiles{.max_head_dim = 256},
    .prefill = PrefillTiles{.value_dims = 32, .shapes = sm80::kPrefill, .board_shapes = sm80::kPrefillBoards},
    .boards = BoardTiles{.shapes = sm80::kBoards},
    .backward = BackwardTiles{.max_bias_dim = 128, .shapes = sm80::kBackward},
    .backward_atomic = AtomicTiles{.shapes = sm80::kAtomic},
    .short_backward = ShortBackwardTiles{.shapes = sm80::kShortBackward},
    .test_chips = sm80::kTestChips,
};

}  // namespace fulmen::gpu
