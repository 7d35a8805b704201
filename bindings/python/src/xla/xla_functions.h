// Functions of scores and masks in a custom call of XLA, as functions/functions.h has them in one
// of Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "functions/functions.h"
#include "xla/xla_frame.h"

namespace fulmen::python::xla {

class Functions {
 public:
  // Attributes: score_mod and mask_mod, "function_tensors", names with spaces between them,
  // "function_gradients" and "block_lists", bits of tensors whose gradients are results and of
  // lists that are given, mask_block_q and mask_block_k. From the first_argument-th on arguments
  // are the tensors, then the lists; results from the first_result-th on are the gradients.
  Functions(const CallFrame& frame, int64_t first_argument, int64_t first_result) {
    const Attributes& attributes = frame.attributes;
    const auto integer = [&](const char* name) {
      return number<int64_t>(attributes, name, DataType::int64, 0);
    };
    score_mod_ = text(attributes, "score_mod");
    mask_mod_ = text(attributes, "mask_mod");
    block_q_ = integer("mask_block_q"), block_k_ = integer("mask_block_k");
    names_ = words(text(attributes, "function_tensors"));
    const int64_t gradients = integer("function_gradients"), lists = integer("block_lists");
    for (size_t at = 0; at < names_.size(); ++at) {
      const View tensor = next_view(frame.arguments, first_argument);
      View gradient;
      const bool has_gradient = (gradients >> at & 1) != 0;
      if (has_gradient) gradient = next_view(frame.results, first_result);
      rows_.push_back(
          as_function_tensor(names_[at].c_str(), tensor, has_gradient ? &gradient : nullptr));
    }
    for (int at = 0; at < kNumBlockLists; ++at) {
      if ((lists >> at & 1) != 0)
        lists_[at] = as_block_list(at, next_view(frame.arguments, first_argument));
    }
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  // Whether a call has any: also where there is a mask alone.
  static bool are_in(const Attributes& attributes) {
    return attributes.find("function_tensors", AttributeType::string) != nullptr;
  }
  // Gives them to a call, which then refers to this object.
  void add_to(fulmen_tensors& tensors, fulmen_options& options) const {
    tensors.function_tensors = rows_.empty() ? nullptr : rows_.data();
    tensors.num_function_tensors = static_cast<int64_t>(rows_.size());
    for (int at = 0; at < kNumBlockLists; ++at) tensors.*kBlockLists[at].member = lists_[at];
    if (!score_mod_.empty()) options.score_mod = score_mod_.c_str();
    if (!mask_mod_.empty()) options.mask_mod = mask_mod_.c_str();
    if (block_q_ > 0) options.mask_block_q = block_q_;
    if (block_k_ > 0) options.mask_block_k = block_k_;
  }

 private:
  static std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> found;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(' ', begin), text.size());
      found.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return found;
  }
  static View next_view(const Buffers& buffers, int64_t& next) {
    if (next >= buffers.size)
      throw Refused(FULMEN_INTERNAL,
                    "fulmen: a call with functions has fewer arrays than it names");
    return view_of(*buffers.buffers[next++], 0);
  }

  std::string score_mod_, mask_mod_;
  int64_t block_q_ = 0, block_k_ = 0;
  std::vector<std::string> names_;
  std::vector<fulmen_function_tensor> rows_;
  fulmen_tensor lists_[kNumBlockLists] = {};
};

}  // namespace fulmen::python::xla
