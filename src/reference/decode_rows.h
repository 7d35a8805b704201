// Rows of a tensor decoded to float or double, as they are or transposed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/float_formats.h"

namespace fulmen::reference {

// The row that starts at element `first` of data, last dim contiguous. out: [dim]
template <class Real>
void decode_row(const void* data, DType dtype, int64_t first, int64_t dim, Real* out) noexcept {
  if (dtype == DType::fp32) {
    const float* row = static_cast<const float*>(data) + first;
    for (int64_t d = 0; d < dim; ++d) out[d] = row[d];
    return;
  }
  const uint16_t* row = static_cast<const uint16_t*>(data) + first;
  if (dtype == DType::bf16) {
    for (int64_t d = 0; d < dim; ++d) out[d] = from_bf16(row[d]);
  } else {
    for (int64_t d = 0; d < dim; ++d) out[d] = from_fp16(row[d]);
  }
}

// Rows at first, first + stride, ... out: [dim, rows]
template <class Real>
void decode_transposed(const void* data, DType dtype, int64_t first, int64_t stride, int64_t rows, int64_t dim,
                       Real* out) noexcept {
  constexpr int64_t kRows = 16;  // with kDims columns a block that stays in the first-level cache, written in whole cache lines
  constexpr int64_t kDims = 64;
  Real block[kRows * kDims];
  for (int64_t j = 0; j < rows; j += kRows) {
    const int64_t count = std::min(kRows, rows - j);
    for (int64_t d = 0; d < dim; d += kDims) {
      const int64_t width = std::min(kDims, dim - d);
      for (int64_t r = 0; r < count; ++r) decode_row(data, dtype, first + (j + r) * stride + d, width, block + r * kDims);
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t r = 0; r < count; ++r) out[(d + c) * rows + j + r] = block[r * kDims + c];
      }
    }
  }
}

}  // namespace fulmen::reference
