// Whether two tensors whose memory lies between each other's have a byte in common.
#pragma once

#include "fulmen/problem.h"
#include "fulmen/tensor.h"

namespace fulmen {

// Exact where tensors have the same strides, or few; a search that would take too long answers yes.
// The last dims are contiguous. Pages: whole ones of other numbers may be the same memory, of which
// block tables say what is in use.
bool share_bytes(const Tensor& a, const TensorSpec& a_spec, const Tensor& b,
                 const TensorSpec& b_spec, bool pages = false);

}  // namespace fulmen
