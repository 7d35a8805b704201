// All tensors of a call in one table: name, place in each struct, which pass reads or writes it.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "runtime/tensor_member.h"

namespace fulmen {

// A tensor of a call, by where it is in each struct.
struct TensorField {
  const char* name;
  TensorMember<AttentionTensors> tensor;
  TensorSpec Problem::* spec;
  bool read[2], written[2];  // by the forward pass, by the backward pass
};
constexpr int kTensorFields = 21;
extern const std::array<TensorField, kTensorFields> kTensorTable;

// Whether a dim of stride 0 may be stored with one element: of bias, keep_mask, alibi_slopes and dbias.
bool may_broadcast(const TensorField& field) noexcept;
// One element in dims of stride 0.
Problem::Shape without_broadcast(const TensorSpec& spec, Problem::Shape shape) noexcept;

// From a tensor's first to one past its last element; 0 where it is absent or empty.
std::size_t bytes_of(const TensorSpec& spec, const Problem::Shape& shape) noexcept;

// A tensor that the plan's pass has, as run() compares it: integers alone, without branches.
struct UsedTensor {
  int field = 0;  // of the table
  DType dtype = DType::fp32;
  Problem::Shape shape{};  // dims that are broadcast have one element, as in most callers' tensors
  Problem::Shape strides{};
  Problem::Shape steps{};  // -1 (all bits) in dims of more than one element, whose strides count; 0 in the others
};

// The tensors' shapes, in the order of the table; bias, keep_mask and alibi_slopes as where nothing is broadcast.
std::array<Problem::Shape, kTensorFields> shapes_of(const Problem& problem);
// Those of the problem's pass. shapes: shapes_of(problem).
std::vector<UsedTensor> used_tensors(const Problem& problem, const std::array<Problem::Shape, kTensorFields>& shapes);

}  // namespace fulmen
