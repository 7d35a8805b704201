// Rows of a tensor decoded to float or double, as they are or transposed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/oracle/score_row.h"
#include "runtime/float_formats.h"
#include "runtime/sequence_view.h"

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

// The elements at which a KV head's rows of k or v begin: key after key, or wherever their pages
// are.
class KeyRows {
 public:
  KeyRows(const SequenceView& view, const TensorSpec& spec, int64_t batch, int64_t kv_head) noexcept
      : pages_(view, spec, batch, kv_head),
        paged_(view.problem.paged()),
        first_(offset_of(spec, batch, 0, kv_head)),
        stride_(spec.strides[1]) {}
  int64_t operator()(int64_t key) const noexcept {
    return paged_ ? pages_.offset(key) : first_ + key * stride_;
  }

 private:
  PagedRows pages_;
  bool paged_;
  int64_t first_;
  int64_t stride_;
};

// out: [dim, rows]
template <class Real>
void decode_transposed(const void* data, DType dtype, const KeyRows& row, int64_t rows, int64_t dim,
                       Real* out) noexcept {
  // A block of kRows by kDims stays in the first-level cache and is written in whole cache lines.
  constexpr int64_t kRows = 16;
  constexpr int64_t kDims = 64;
  Real block[kRows * kDims];
  for (int64_t j = 0; j < rows; j += kRows) {
    const int64_t count = std::min(kRows, rows - j);
    for (int64_t d = 0; d < dim; d += kDims) {
      const int64_t width = std::min(kDims, dim - d);
      for (int64_t r = 0; r < count; ++r)
        decode_row(data, dtype, row(j + r) + d, width, block + r * kDims);
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t r = 0; r < count; ++r) out[(d + c) * rows + j + r] = block[r * kDims + c];
      }
    }
  }
}

}  // namespace fulmen::reference
