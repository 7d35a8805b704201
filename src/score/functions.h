// A problem's functions, parsed and differentiated: what evaluators and kernels take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/score_functions.h"
#include "fulmen/status.h"
#include "score/elements.h"
#include "score/node.h"

namespace fulmen {

// One place of a tensor that has a gradient, in the results of a backward graph.
struct LoadResult {
  int tensor = 0;
  int by = 0;     // the result that is the derivative of score_mod by the element
  int index = 0;  // the first of the tensor's dims results that are its indices
};

struct ScoreFunctions::Impl {
  std::string score_text, mask_text;
  std::vector<ScoreFunctions::Tensor> tensors;
  // Graphs; without nodes where the text is empty.
  score::Graph score;  // one result: the score
  score::Graph mask;   // one result: whether a pair is attended
  // Of a backward problem: the derivative by the score, then the results of `loads`.
  score::Graph gradient;
  std::vector<LoadResult> loads;

  bool has_score() const noexcept { return !score.nodes.empty(); }
  bool has_mask() const noexcept { return !mask.nodes.empty(); }
};

namespace score {

// Parses both texts, either of which may be empty. with_gradients: of a backward problem. tensors:
// checked. Errors: invalid_argument, with line and column.
Result<ScoreFunctions> make_functions(const std::string& score_mod, const std::string& mask_mod,
                                      std::vector<ScoreFunctions::Tensor> tensors,
                                      bool with_gradients);

// The elements of a call's tensors, by the problem's shapes and strides. to: kMaxTensors.
void bind(const ScoreFunctions& functions, std::span<const FunctionTensor> tensors, Elements* to);

}  // namespace score
}  // namespace fulmen
