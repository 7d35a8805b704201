// The gradients of functions' tensors from their sums: rounded to the gradient's dtype. A lane an
// element.
#include "backward/parts/exact_sum.h"

namespace fulmen::kernels {

// The tensor that has an element. Every tensor is compared: an index that lanes do not share would
// put the arguments into scratch.
FULMEN_DEVICE TensorGradient tensor_of(const TensorGradients& g, int element) {
  TensorGradient tensor = g.of[0];
#pragma unroll
  for (int t = 1; t < algorithm::kMostTensorGradients; ++t) {
    if (t < g.count && element >= g.of[t].first) tensor = g.of[t];
  }
  return tensor;
}

// Where an element of the gradient is, in elements; place: row-major.
FULMEN_DEVICE Int64 offset_of(const TensorGradient& tensor, int place) {
  Int64 offset = 0;
  auto left = static_cast<unsigned>(place);
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    const auto extent = static_cast<unsigned>(tensor.extent[d]);
    offset += Int64{left % extent} * tensor.stride[d];
    left /= extent;
  }
  return offset;
}

FULMEN_DEVICE void tensor_sums(const BackwardArguments& a) {
  const TensorGradients& g = a.tensor_gradients;
  const Int64 n = workgroup_id() * kWorkgroup + thread_id();
  if (n >= g.elements) return;
  const auto element = static_cast<int>(n);
  const float sum = exact_sum(g, element);
  const TensorGradient tensor = tensor_of(g, element);
  const Int64 offset = offset_of(tensor, element - tensor.first);
  switch (tensor.dtype) {
    case 1:
      return global_store(static_cast<Half*>(tensor.data) + offset, from_float<Half>(sum));
    case 2:
      return global_store(static_cast<Bfloat16*>(tensor.data) + offset, from_float<Bfloat16>(sum));
    default:
      return global_store(static_cast<float*>(tensor.data) + offset, sum);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::tensor_sums)
