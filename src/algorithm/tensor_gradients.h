// What the launches that give functions' tensors their gradients are passed.
#pragma once

namespace fulmen::algorithm {

// The gradient of a functions' tensor, and where its elements' sums are.
struct TensorGradient {
  void* data;
  long long stride[4];  // elements
  int extent[4];        // 1 behind the tensor's dims
  int first;  // element of all gradients' elements, one tensor behind the other, row-major
  int dtype;  // 0 fp32, 1 fp16, 2 bf16
};
// What backward/tensor_gradients.h adds to: [kTensorSumWords][elements], then flags
// [2][elements] of 4 bytes (backward/parts/exact_sum.h).
constexpr int kMostTensorGradients = 8, kTensorSumWords = 12;
constexpr int kTensorRunTiles = 16;  // tiles of keys that a workgroup goes over
struct TensorGradients {
  TensorGradient of[kMostTensorGradients];
  long long* sums;
  int count;     // tensors
  int elements;  // of all
};

}  // namespace fulmen::algorithm
