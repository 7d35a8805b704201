// A tensor of AttentionTensors or KvCacheTensors by where it is, be it an input or an output.
#pragma once

#include "fulmen/tensor.h"

namespace fulmen {

template <class Tensors>
class TensorMember {
 public:  // NOLINTBEGIN(google-explicit-constructor): a table's entries are members
  constexpr TensorMember(Tensor Tensors::* output) noexcept : output_(output) {}
  constexpr TensorMember(InputTensor Tensors::* input) noexcept : input_(input) {}
  constexpr bool operator==(const TensorMember&) const noexcept = default;
  // NOLINTEND(google-explicit-constructor)

  // The output's place; null where it is an input.
  constexpr Tensor Tensors::* output() const noexcept { return output_; }

  friend Tensor& operator->*(Tensors& tensors, TensorMember member) noexcept {
    return at<Tensor>(tensors, member);
  }
  friend const Tensor& operator->*(const Tensors& tensors, TensorMember member) noexcept {
    return at<const Tensor>(tensors, member);
  }

 private:
  template <class View, class Struct>
  static View& at(Struct& tensors, TensorMember member) noexcept {
    if (member.input_ != nullptr) return tensors.*member.input_;
    return tensors.*member.output_;
  }

  Tensor Tensors::* output_ = nullptr;
  InputTensor Tensors::* input_ = nullptr;
};

}  // namespace fulmen
