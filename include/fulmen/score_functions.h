// Functions of scores and masks: text that changes scores or says which pairs are attended, and the
// tensors that it reads. docs/guide/score_functions.md has the language.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fulmen/export.h"
#include "fulmen/tensor.h"

namespace fulmen {

// A tensor that score_mod or mask_mod reads by its name.
struct FunctionTensor {
  // Letters, digits and _, no digit first; no word of the language.
  std::string_view name;
  // 0 to 4: the first so many of the tensor's shape and strides count. Any strides, negative ones
  // included; indices begin at `data`.
  int dims = 0;
  // fp32, fp16, bf16, int32, int64, int8, uint8 or boolean.
  InputTensor tensor{};
  // Output of the backward pass, its data null where it is not wanted: the loss's gradient by the
  // tensor, summed over all pairs. The tensor's shape; fp32 or the tensor's dtype, which is a float
  // one. Each element has a place of its own.
  Tensor gradient{};
};

// The functions of a Problem as make_problem() parsed them, with all of their tensors but the
// pointers. Copies share what they hold.
class FULMEN_API ScoreFunctions {
 public:
  // One of the tensors, in the order of AttentionTensors::function_tensors.
  struct Tensor {
    std::string name;
    int dims = 0;
    DType dtype = DType::fp32;
    std::array<int64_t, 4> shape{};
    std::array<int64_t, 4> strides{};
    bool has_gradient = false;
    DType gradient_dtype = DType::fp32;
    std::array<int64_t, 4> gradient_strides{};
    bool operator==(const Tensor&) const = default;
  };
  struct Impl;

  ScoreFunctions() noexcept = default;  // of a problem without any
  explicit ScoreFunctions(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}

  bool any() const noexcept { return impl_ != nullptr; }
  // The texts; empty where there is no such function.
  std::string_view score_mod() const noexcept;
  std::string_view mask_mod() const noexcept;
  std::span<const Tensor> tensors() const noexcept;
  // By texts and tensors.
  bool operator==(const ScoreFunctions& other) const noexcept;
  std::size_t hash() const noexcept;
  // For the library's own kernels.
  const Impl* impl() const noexcept { return impl_.get(); }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace fulmen
