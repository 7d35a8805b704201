// A run's score functions: the plan's bytecode with the run's tensors.
#pragma once

#include <array>

#include "cpu/tile/tile_function.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// Lives as long as the functions that it gives.
class BoundFunctions {
 public:
  BoundFunctions(const Problem& problem, const AttentionTensors& tensors)
      : functions_(problem.functions.impl()) {
    if (functions_ != nullptr)
      score::bind(problem.functions, tensors.function_tensors, elements_.data());
  }
  BoundFunctions(const BoundFunctions&) = delete;
  BoundFunctions& operator=(const BoundFunctions&) = delete;

  TileFunction score() const { return of(&ScoreFunctions::Impl::score_code); }
  TileFunction mask() const { return of(&ScoreFunctions::Impl::mask_code); }
  TileFunction gradient() const { return of(&ScoreFunctions::Impl::gradient_code); }

 private:
  TileFunction of(const score::Bytecode ScoreFunctions::Impl::* code) const {
    if (functions_ == nullptr || !(functions_->*code).any()) return {};
    return {&(functions_->*code), elements_.data()};
  }

  const ScoreFunctions::Impl* functions_;
  std::array<score::Elements, score::kMaxTensors> elements_;
};

}  // namespace fulmen::cpu
