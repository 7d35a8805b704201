// Where backward_atomic.h's tiles lie.
#pragma once

#include "backward_tile.h"

namespace fulmen::kernels {

constexpr AtomicLayout kAtomic =
    AtomicLayout::of({kTransposedValues, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kRowsInLds, kGivesDk, kGivesDv, kPairs});
static_assert(kAtomic.total == kLdsBytes, "backward_atomic: the host reserves the LDS that the tiles need");

// P^T and dS^T, a workgroup's keys and a tile's queries, 16 x 16 at a time: to there from where a lane has scores, and from there
// as an operand, as they are or turned. `at`: of the 16 rows.
struct PaddedScores {
  static constexpr int kPitch = 2 * kBlockN + 16;
  FULMEN_DEVICE static void leave(unsigned lane, int at, int tile, const ProbabilityOperand& p) {
    lds_store_operand(at + 32 * tile, kPitch, p, lane);
  }
  FULMEN_DEVICE static ProbabilityOperand rows(unsigned lane, int at, int tile) {
    return lds_probability_operand(at + 32 * tile, kPitch, lane);
  }
  FULMEN_DEVICE static ProbabilityOperand turned(unsigned lane, int at, int tile) {
    return lds_turned_operand(at + 32 * tile, kPitch, lane);
  }
};
// Without padding, which pairs have no room for; elsewhere the lanes' addresses that this needs are spilled.
struct SwizzledScores {
  using Rows = SwizzledRows<kBlockN>;
  static constexpr int kPitch = Rows::kPitch;
  FULMEN_DEVICE static void leave(unsigned lane, int at, int tile, const ProbabilityOperand& p) {
    Rows::leave(lane, at, 0, tile, p.words);
  }
  FULMEN_DEVICE static ProbabilityOperand rows(unsigned lane, int at, int tile) { return {Rows::queries(lane, at, 0, tile).words}; }
  FULMEN_DEVICE static ProbabilityOperand turned(unsigned lane, int at, int tile) { return Rows::turned(lane, at, tile); }
};
using ScoreRows = Either<kPairs, SwizzledScores, PaddedScores>;
static_assert(ScoreRows::kPitch == kAtomic.score_pitch, "backward_atomic: scores are where the host's layout has them");

}  // namespace fulmen::kernels
