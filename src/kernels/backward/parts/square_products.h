// Products of a tile of rows and a tile of columns without matrix instructions: q.k and dout.v, by
// chunks of dims that go through LDS (tile/square.h).
#pragma once

#include "backward/parts/square_scores.h"
#include "tile/square_stage.h"

namespace fulmen::kernels {

// Rows of two tensors, and one tile of weights; or, where tensors' gradients are asked for, two
// numbers of each pair (SquareShape::numbers).
constexpr SquareLayout kLayout =
    SquareLayout::of(square_shape(true, kGivesTensors ? 0 : 1, kGivesTensors ? 2 : 0));

// One tensor of a side: where its rows from `first` on are, and those that are there.
struct TensorRows {
  const Element* head;
  Int64 stride;
  int dims;

  FULMEN_DEVICE RowsAt<Element> at(RowRange range, int most) const {
    return {head + range.first * stride, stride, at_most(range.end - range.first, most) - 1};
  }
};
struct SquareSide {
  TensorRows first, second;

  FULMEN_DEVICE static SquareSide of(const BackwardArguments& a, const Side& side) {
    return {{side.first, side.first_stride, a.head_dim},
            {side.second, side.second_stride, a.head_dim_v}};
  }
  FULMEN_DEVICE static SquareSide rows(const BackwardArguments& a, Int64 batch, Int64 head) {
    return of(a, kRowsAreKeys ? Side::keys(a, batch, head / a.group_size)
                              : Side::queries(a, batch, head));
  }
  FULMEN_DEVICE static SquareSide columns(const BackwardArguments& a, Int64 batch, Int64 head) {
    return of(a, kRowsAreKeys ? Side::queries(a, batch, head)
                              : Side::keys(a, batch, head / a.group_size));
  }
};

constexpr int kChunkBytes = 4 * kChunk / kInWord;  // of a row

// A chunk of the workgroup's rows of a tensor to LDS; where they stay, all of them once.
template <int kPitch>
FULMEN_DEVICE void stage_own_rows(const TensorRows& tensor, RowRange rows, int chunk, int at) {
  stage_rows<true, kBlockM>(tensor.at(rows, kBlockM), chunk * kChunk, tensor.dims,
                            at + (kRowsStay ? kChunkBytes * chunk : 0), kPitch);
}
FULMEN_DEVICE void stage_staying_rows(const SquareSide& side, RowRange rows) {
  if constexpr (!kRowsStay) return;
  for (int chunk = 0; chunk < kChunks; ++chunk)
    stage_own_rows<kLayout.first_pitch>(side.first, rows, chunk, 0);
  for (int chunk = 0; chunk < kChunksV && kNeedsDout; ++chunk)
    stage_own_rows<kLayout.second_pitch>(side.second, rows, chunk, kLayout.second_at);
}

// product += rows . columns over all dims of a tensor; rows_at: in LDS.
template <int kPitch, bool kMasked>
FULMEN_DEVICE void multiply(const TensorRows& own, RowRange rows, int rows_at,
                            const TensorRows& other, RowRange columns, int chunks,
                            RowsByColumns& product) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    barrier();
    if constexpr (!kRowsStay) stage_own_rows<kPitch>(own, rows, chunk, rows_at);
    stage_rows<kMasked, kBlockN>(other.at(columns, kBlockN), chunk * kChunk, other.dims,
                                 kLayout.columns_at, kColumnPitch);
    barrier();
    multiply_chunk<kPitch>(rows_at + (kRowsStay ? kChunkBytes * chunk : 0), kLayout.columns_at,
                           product);
  }
}

}  // namespace fulmen::kernels
