// What a call has beside its tensors and scalars: functions of scores and masks as text, the
// tensors that they read, and lists of blocks (docs/guide/score_functions.md).
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "arguments/call.h"

namespace fulmen::python {

// Lists of a block mask by their keywords: counts, the even ones, are [batch, heads, rows], the
// others [batch, heads, rows, blocks].
constexpr struct {
  const char* name;
  fulmen_tensor fulmen_tensors::* member;
} kBlockLists[] = {
    {"kv_num_blocks", &fulmen_tensors::kv_num_blocks},
    {"kv_indices", &fulmen_tensors::kv_indices},
    {"full_kv_num_blocks", &fulmen_tensors::full_kv_num_blocks},
    {"full_kv_indices", &fulmen_tensors::full_kv_indices},
};
constexpr int kNumBlockLists = sizeof kBlockLists / sizeof kBlockLists[0];
constexpr bool is_of_counts(int list) { return list % 2 == 0; }

// A list in the C ABI, which has counts as [batch, heads, 1, rows].
fulmen_tensor as_block_list(int list, const View& view);
// A tensor that functions read; gradient: null if it is not wanted.
fulmen_function_tensor as_function_tensor(const char* name, const View& tensor,
                                          const View* gradient);

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
  Array lists_[kNumBlockLists];
};

}  // namespace fulmen::python
