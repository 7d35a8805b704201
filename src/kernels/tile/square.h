// What the kernels without matrix instructions share: 16 x 16 lanes, and chunks of dims in flight
// to LDS.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

constexpr int kSide = 16;
constexpr int kChunk = 32;
constexpr int kChunkDims = kChunk / kSide;
// LDS rows are one longer than their tile, so that a column lies in different banks.
constexpr int kLongerSide = kBlockM > kBlockN ? kBlockM : kBlockN;
constexpr int kPitch = kLongerSide + 1;

FULMEN_DEVICE int lane_row() { return thread_id() / kSide; }
FULMEN_DEVICE int lane_column() { return thread_id() % kSide; }
// LDS by the index of a float.
FULMEN_DEVICE float lds_float(int index) { return lds_load<float>(4 * index); }
FULMEN_DEVICE void set_lds_float(int index, float value) { lds_store(4 * index, value); }

// Rows from `first` on; none from `end` on.
struct RowRange {
  Int64 first, end;
};

// A tile's kCount rows, which row_at(number) finds, dims [dim, dim + kChunk), to LDS
// [row * row_step + dim * dim_step]; zeros outside the range.
template <int kCount, class RowAt>
FULMEN_DEVICE void stage_rows(const RowAt& row_at, RowRange range, int dim, int dims, int lds,
                              int row_step, int dim_step) {
  for (int index = thread_id(); index < kCount * kChunk; index += kWorkgroup) {
    const int row = index / kChunk, d = index % kChunk;
    const Int64 r = range.first + row;
    float value = 0;
    if (r < range.end && dim + d < dims) value = to_float(global_load(row_at(r) + dim + d));
    set_lds_float(lds + row * row_step + d * dim_step, value);
  }
}

// Stages rows of a head that lie `stride` elements apart.
template <int kCount>
FULMEN_DEVICE void stage(const Element* head, Int64 stride, RowRange range, int dim, int dims,
                         int lds, int row_step, int dim_step) {
  stage_rows<kCount>([&](Int64 row) { return head + row * stride; }, range, dim, dims, lds,
                     row_step, dim_step);
}

}  // namespace fulmen::kernels
