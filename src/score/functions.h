// A problem's functions, parsed and differentiated: what evaluators and kernels take.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/score_functions.h"
#include "fulmen/status.h"
#include "score/bytecode.h"
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
  score::Graph score;           // one result: the score
  score::Graph mask;            // one result: whether a pair is attended
  bool with_gradients = false;  // of a backward problem
  // The derivative by the score, the results of `loads`, then the score. A forward problem, whose
  // tolerance asks for the first, may have none: where it is too large.
  score::Graph gradient;
  std::vector<LoadResult> loads;

  // The same for the CPU kernels.
  score::Bytecode score_code, mask_code, gradient_code;

  bool has_score() const noexcept { return !score.nodes.empty(); }
  bool has_mask() const noexcept { return !mask.nodes.empty(); }
};

// Elements of one of the functions' tensors, and where a row-major element of its gradient lies.
inline int64_t elements_of(const ScoreFunctions::Tensor& tensor) noexcept {
  int64_t count = 1;
  for (int d = 0; d < tensor.dims; ++d) count *= tensor.shape[d];
  return count;
}
inline int64_t gradient_offset(const ScoreFunctions::Tensor& tensor, int64_t at) noexcept {
  int64_t offset = 0;
  for (int d = tensor.dims - 1; d >= 0; --d) {
    offset += at % tensor.shape[d] * tensor.gradient_strides[d];
    at /= tensor.shape[d];
  }
  return offset;
}

namespace score {

// Parses both texts, either of which may be empty. with_gradients: of a backward problem. tensors:
// checked. Errors: invalid_argument, with line and column.
Result<ScoreFunctions> make_functions(const std::string& score_mod, const std::string& mask_mod,
                                      std::vector<ScoreFunctions::Tensor> tensors,
                                      bool with_gradients);

// Functions of which options have taken over a part. Without any where nothing is left for a
// kernel.
ScoreFunctions what_is_left(std::shared_ptr<ScoreFunctions::Impl> impl);

// The elements of a call's tensors, by the problem's shapes and strides. to: kMaxTensors.
void bind(const ScoreFunctions& functions, std::span<const FunctionTensor> tensors, Elements* to);

}  // namespace score
}  // namespace fulmen
