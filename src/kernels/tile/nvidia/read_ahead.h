// NVIDIA: the compiler reads operands ahead. Nothing of it is called.
#pragma once

#include "tile/wave_step.h"

namespace fulmen::kernels {

constexpr bool kReadsAhead = false, kAllLanesStore = true;
constexpr int kKeysHeld = 1, kValuesHeld = 1;
FULMEN_DEVICE constexpr int score_parts() { return 1; }
template <class T, class Keys>
FULMEN_DEVICE void multiply_score_part(T (& /*scores*/)[kElements], const Keys& /*keys*/,
                                       const StagedRows& /*queries*/, int /*n*/) {}
FULMEN_DEVICE constexpr int value_parts() { return 1; }
template <class T, class Values>
FULMEN_DEVICE void multiply_value_part(T (& /*out*/)[kElements], const StagedProbabilities& /*p*/,
                                       const Values& /*values*/, int /*n*/) {}
struct ValuesAhead {
  FULMEN_DEVICE void read_first(int buffer);
  FULMEN_DEVICE void multiply(OutputFragment& out, int buffer, int step,
                              const StagedProbabilities (&p)[kRowTiles]);
};
template <bool kMasked>
FULMEN_DEVICE void exponentiate_tile(const RowMap& map, Int64 wave_row, const KeyTile& tile,
                                     ScoreFragment& score, WaveRows& rows,
                                     StagedProbabilities (&p)[kValueSteps][kRowTiles]);

}  // namespace fulmen::kernels
