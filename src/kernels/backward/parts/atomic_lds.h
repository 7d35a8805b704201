// Where backward_atomic.h's tiles lie.
#pragma once

#include "backward/backward_layout.h"
#include "backward/parts/tile.h"

namespace fulmen::kernels {

constexpr bool kPairs = kDimGroups > 1;  // of waves share keys
constexpr AtomicLayout kAtomic =
    AtomicLayout::of({kTransposedDepth, kReadsTransposed, kHeadDim, kHeadDimV, kBlockM, kBlockN,
                      kBuffers, kRowsInLds, kGivesDk, kGivesDv, kDimGroups});
static_assert(kAtomic.total == kLdsBytes,
              "backward_atomic: the host reserves the LDS that the tiles need");
static_assert(kPairs == kRowsInLds && kDimGroups != 3 && kDimGroups <= 4,
              "backward_atomic: pairs, or two, have their keys in LDS");

// P^T and dS^T, a workgroup's keys and a tile's queries, 16 x 16 at a time: to there from where a
// lane has scores, and from there as an operand, as they are or transposed. `at`: of the 16 rows.
struct PaddedScores {
  static constexpr int kTiles = kColumnTiles;
  static constexpr int kPitch = 2 * kBlockN + 16;
  FULMEN_DEVICE static void leave(unsigned lane, int at, int tile, const ProbabilityOperand& p) {
    lds_store_operand(at + 32 * tile, kPitch, p, lane);
  }
  FULMEN_DEVICE static ProbabilityOperand rows(unsigned lane, int at, int tile) {
    return lds_probability_operand(at + 32 * tile, kPitch, lane);
  }
  FULMEN_DEVICE static ProbabilityOperand transposed(unsigned lane, int at, int tile) {
    return lds_transposed_operand(at + 32 * tile, kPitch, lane);
  }
};
// Without padding, which pairs have no room for; elsewhere the lanes' addresses that this needs are
// spilled. kTiles tiles of 16 queries lie side by side, the next ones kPartBytes further.
template <int kTilesOfARow>
struct SwizzledScores {
  using Rows = SwizzledRows<kScoreTile * kTilesOfARow>;
  static constexpr int kTiles = kTilesOfARow;
  static constexpr int kPitch = Rows::kPitch;
  FULMEN_DEVICE static void leave(unsigned lane, int at, int tile, const ProbabilityOperand& p) {
    Rows::leave(lane, at, 0, tile, p.words);
  }
  FULMEN_DEVICE static ProbabilityOperand rows(unsigned lane, int at, int tile) {
    return {Rows::queries(lane, at, 0, tile).words};
  }
  FULMEN_DEVICE static ProbabilityOperand transposed(unsigned lane, int at, int tile) {
    return Rows::transposed(lane, at, tile);
  }
};
using ScoreRows =
    Either<kPairs, SwizzledScores<kColumnTiles / (kDimGroups == 4 ? 2 : 1)>, PaddedScores>;
constexpr int kScorePartBytes = kBlockM * ScoreRows::kPitch;
static_assert(kScorePartBytes * (kColumnTiles / ScoreRows::kTiles) == kAtomic.gradient_bytes,
              "backward_atomic: scores are where the host's layout has them");

}  // namespace fulmen::kernels
