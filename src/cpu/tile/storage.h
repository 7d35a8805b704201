// Tensor elements as the CPU kernels see them.
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// An element's address: the pointer is the call's, the strides are the Problem's (where broadcast
// dims have stride 0).
template <class T>
FULMEN_INLINE T* element(const Tensor& tensor, const TensorSpec& spec, int64_t i0, int64_t i1,
                         int64_t i2, int64_t i3 = 0) {
  return static_cast<T*>(tensor.data) + i0 * spec.strides[0] + i1 * spec.strides[1] +
         i2 * spec.strides[2] + i3 * spec.strides[3];
}

// Whether a tensor's heads are adjacent in its rows, with no more between them than they have.
FULMEN_INLINE bool side_by_side(const TensorSpec& spec, int64_t dim) {
  return spec.strides[2] < spec.strides[1] && spec.strides[2] < 2 * dim;
}

// The same for code that is compiled once for all types: elements of so many bytes.
FULMEN_INLINE char* element_address(const Tensor& tensor, const TensorSpec& spec, int64_t bytes,
                                    int64_t i0, int64_t i1, int64_t i2) {
  return static_cast<char*>(tensor.data) +
         bytes * (i0 * spec.strides[0] + i1 * spec.strides[1] + i2 * spec.strides[2]);
}

// Body(null pointer of the storage type) for a bias's dtype.
template <class Body>
FULMEN_INLINE void with_bias_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::fp16:
      return body(static_cast<Fp16*>(nullptr));
    case DType::bf16:
      return body(static_cast<Bf16*>(nullptr));
    default:
      return body(static_cast<float*>(nullptr));
  }
}

// Whether rows of so many bytes, `stride` bytes apart, are whole cache lines: only those may go
// past the caches, which are slow for parts of lines.
FULMEN_INLINE bool rows_are_lines(const void* first, int64_t stride, int64_t row) {
  return reinterpret_cast<uintptr_t>(first) % 64 == 0 && stride % 64 == 0 && row % 64 == 0;
}

}  // namespace fulmen::cpu
