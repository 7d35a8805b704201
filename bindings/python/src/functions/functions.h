// What a call has beside its tensors and scalars: functions of scores and masks as text, the
// tensors that they read, and lists of blocks (docs/guide/score_functions.md).
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "arguments/call.h"

namespace fulmen::python {

class ScoreFunctions {
 public:
  // Keywords of fulmen._core's functions: score_mod and mask_mod (str), function_tensors and
  // function_gradients ({name: array}; the latter are written), kv_num_blocks and
  // full_kv_num_blocks (int32 [batch, heads, rows]), kv_indices and full_kv_indices (int32 [batch,
  // heads, rows, blocks]), mask_block_q and mask_block_k; and precision (str), which every call may
  // have. Each may be None. Throws TypeError and ArgumentError, which name the keyword.
  explicit ScoreFunctions(const nb::kwargs& given);
  ScoreFunctions(const ScoreFunctions&) = delete;
  ScoreFunctions& operator=(const ScoreFunctions&) = delete;

  bool empty() const { return empty_; }
  // Gives them to a call, which then refers to this object. Throws ArgumentError for an array that
  // is not where q is.
  void add_to(Call& call);

 private:
  void read_tensors(nb::handle tensors, nb::handle gradients);
  // Whether torch answers for the device of all arrays, and none is written.
  bool are_of_torch() const;

  bool empty_ = true;
  std::string score_mod_, mask_mod_;
  int64_t block_q_ = 0, block_k_ = 0;
  int32_t precision_ = FULMEN_PRECISION_EXACT;
  std::vector<std::string> names_;
  std::vector<Array> tensors_, gradients_;  // a gradient that is not wanted has no data
  std::vector<fulmen_function_tensor> rows_;
  Array lists_[4];
};

}  // namespace fulmen::python
