// Rows of a tensor decoded to float or double, as they are or transposed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/oracle/score_row.h"
#include "runtime/float_formats.h"
#include "runtime/kv_source.h"

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

// All keys' rows of k or v. out: [rows, dim]
template <class Real>
void decode_rows(const KvSource& source, int64_t rows, Real* out) noexcept {
  float row[kMaxHeadDim];
  for (int64_t j = 0; j < rows; ++j, out += source.dim()) {
    source.row(j, row);
    std::copy_n(row, source.dim(), out);
  }
}

// out: [dim, rows]
template <class Real>
void decode_transposed(const KvSource& source, int64_t rows, Real* out) noexcept {
  constexpr int64_t kRows = 16;  // written in whole cache lines
  float block[kRows * kMaxHeadDim];
  for (int64_t j = 0; j < rows; j += kRows) {
    const int64_t count = std::min(kRows, rows - j);
    for (int64_t r = 0; r < count; ++r) source.row(j + r, block + r * kMaxHeadDim);
    for (int64_t d = 0; d < source.dim(); ++d) {
      for (int64_t r = 0; r < count; ++r) out[d * rows + j + r] = block[r * kMaxHeadDim + d];
    }
  }
}

}  // namespace fulmen::reference
