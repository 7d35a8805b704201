// What planning and running take from the table of tensors (fulmen/tensor_fields.h): shapes, bytes,
// what a plan compares.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "fulmen/tensor_fields.h"

namespace fulmen {

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
  // -1 (all bits) in dims of more than one element, whose strides count; 0 in the others.
  Problem::Shape steps{};
};

// The tensors' shapes, in the order of the table; bias, keep_mask and alibi_slopes as where nothing
// is broadcast.
std::array<Problem::Shape, kTensorFields> shapes_of(const Problem& problem);
// Those of the problem's pass. shapes: shapes_of(problem).
std::vector<UsedTensor> used_tensors(const Problem& problem,
                                     const std::array<Problem::Shape, kTensorFields>& shapes);

}  // namespace fulmen
