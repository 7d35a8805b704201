// What scores are multiplied by, of a problem.
#pragma once

#include "algorithm/online_softmax.h"
#include "cpu/tile/call.h"
#include "cpu/tile/tile_function.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

inline ScoreScale score_scale(const Problem& problem) {
  ScoreScale scale;
  scale.scale = problem.softmax_scale;
  scale.log2_scale = problem.softmax_scale * algorithm::kLog2E;
  if (problem.softcap > 0.0F) {
    scale.tanh_scale = 2.0F * algorithm::kLog2E * problem.softmax_scale / problem.softcap;
    scale.softcap = problem.softcap;
  }
  if (in_natural_units(problem)) scale.units = algorithm::ScoreUnits::natural;
  return scale;
}

}  // namespace fulmen::cpu
