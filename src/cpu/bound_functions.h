// A run's score functions: the plan's code with the run's tensors.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "cpu/compiled_functions.h"
#include "cpu/tile/tile_function.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// Lives as long as the functions that it gives.
class BoundFunctions {
 public:
  BoundFunctions(const Problem& problem, const AttentionTensors& tensors,
                 const CompiledFunctions& compiled)
      : functions_(problem.functions.impl()), compiled_(compiled) {
    if (functions_ == nullptr) return;
    score::bind(problem.functions, tensors.function_tensors, elements_.data());
    if (!compiled.any()) return;
    for (std::size_t t = 0; t < problem.functions.tensors().size(); ++t) {
      PairsTensor& to = pair_tensors_[t];
      to.data = elements_[t].data;
      std::copy_n(elements_[t].shape.begin(), elements_[t].dims, to.shape);
      std::copy_n(elements_[t].strides.begin(), elements_[t].dims, to.strides);
    }
  }
  BoundFunctions(const BoundFunctions&) = delete;
  BoundFunctions& operator=(const BoundFunctions&) = delete;

  TileFunction score() const { return of(&ScoreFunctions::Impl::score_code); }
  TileFunction mask() const { return of(&ScoreFunctions::Impl::mask_code); }
  TileFunction gradient() const { return of(&ScoreFunctions::Impl::gradient_code); }

 private:
  TileFunction of(const score::Bytecode ScoreFunctions::Impl::* code) const {
    if (functions_ == nullptr || !(functions_->*code).any()) return {};
    return {&(functions_->*code), elements_.data(), compiled_.pairs(&(functions_->*code)),
            pair_tensors_.data()};
  }

  const ScoreFunctions::Impl* functions_;
  const CompiledFunctions& compiled_;
  std::array<score::Elements, score::kMaxTensors> elements_;
  std::array<PairsTensor, score::kMaxTensors> pair_tensors_{};
};

}  // namespace fulmen::cpu
