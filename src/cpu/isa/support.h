// What every CPU kernel asks of a problem and an instruction set.
#pragma once

#include <string>

#include "algorithm/online_softmax.h"
#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::cpu {

// serves: the instruction set has this kernel for the problem's dtype.
inline Support isa_support(const InstructionSet& isa, bool serves, const Problem& problem) {
  if (!serves) return Support::no(std::string("not built for dtype ") + to_string(problem.dtype));
  if (!isa.available) return Support::no("this processor lacks " + std::string(isa.missing));
  return {};
}

inline ScoreScale score_scale(const Problem& problem) {
  ScoreScale scale;
  scale.log2_scale = problem.softmax_scale * algorithm::kLog2E;
  if (problem.softcap > 0.0F) {
    scale.tanh_scale = 2.0F * algorithm::kLog2E * problem.softmax_scale / problem.softcap;
    scale.log2_softcap = problem.softcap * algorithm::kLog2E;
  }
  return scale;
}

}  // namespace fulmen::cpu
