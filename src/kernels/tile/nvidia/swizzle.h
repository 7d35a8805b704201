// Rows of 16-bit elements in NVIDIA's LDS. They are not padded, as copies to LDS would cross its
// lines of 128 bytes then and take two to three times as long: pieces of 16 bytes are swizzled, so
// that those of 8 rows lie in different banks.
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

template <int kDims>
struct SwizzledRows {
  static constexpr int kPitch = 2 * kDims;
  // What a row's bytes are XORed with. Rows share lines of 128 bytes where they are no multiple of
  // that: two, or four, which have no more than two pieces to swap.
  FULMEN_DEVICE static int mask(int row) {
    static_assert(kDims % 16 == 0, "swizzle: rows are multiples of 32 bytes");
    const auto r = static_cast<unsigned>(row);
    return static_cast<int>(16 * (kDims % 64 == 0   ? r % 8
                                  : kDims % 32 == 0 ? r / 2 % 4
                                                    : r / 4 % 2));
  }
  // Where byte `byte` of a row lies, from the first row on.
  FULMEN_DEVICE static int place(int row, int byte) { return row * kPitch + (byte ^ mask(row)); }

  // 16 rows from `at` on and kMmaK dims, in the registers that rows of memory come in.
  FULMEN_DEVICE static RowOperand rows(unsigned lane, int at, int depth) {
    const int from = at + shifted(lane % 8, lane / 8, 2 * kMmaK * depth);
    return {{ldmatrix_x4(from), ldmatrix_x4(from + 8 * kPitch)}};
  }
  // 16 rows from `row` on, a multiple of 8, and kTileMmaK dims.
  FULMEN_DEVICE static KeyOperand keys(unsigned lane, int at, int row, int depth) {
    return {ldmatrix_x4(at + row * kPitch +
                        shifted(lane % 8 + lane / 16 * 8, lane / 8 % 2, 32 * depth))};
  }
  FULMEN_DEVICE static QueryOperand queries(unsigned lane, int at, int row, int depth) {
    return {ldmatrix_x4(at + row * kPitch + shifted(lane % 16, lane / 16, 32 * depth))};
  }
  // 16 rows from `at` on and the tile's 16 columns, with these as rows.
  FULMEN_DEVICE static ProbabilityOperand transposed(unsigned lane, int at, int tile) {
    return {ldmatrix_x4_trans(at + shifted(lane % 8 + lane / 16 * 8, lane / 8 % 2, 32 * tile))};
  }
  // 16 rows from 16 * tile on as keys of values, and 16 dims.
  FULMEN_DEVICE static ValueOperand values(unsigned lane, int at, int tile, int dims) {
    return {ldmatrix_x4_trans(at + kValueDepth * tile * kPitch +
                              shifted(lane % 16, lane / 16, 32 * dims))};
  }

  // A tile of outputs, packed as scores are, to 16 rows from `row` on and 16 dims.
  FULMEN_DEVICE static void leave(unsigned lane, int at, int row, int dims,
                                  const Words<4>& outputs) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      leave_half(lane, at + (row + 8 * (w % 2)) * kPitch, 32 * dims + 16 * (w / 2),
                 outputs.word[w]);
    }
  }
  // A lane's word of 8 dims that begin at byte `byte`, to the lane's row of 8.
  FULMEN_DEVICE static void leave_half(unsigned lane, int at, int byte, unsigned word) {
    lds_store(at + shifted(lane / 4, 0, byte) + 4 * static_cast<int>(lane % 4), word);
  }

 private:
  static constexpr int kSwizzledBytes = kDims % 64 == 0 ? 128 : kDims % 32 == 0 ? 64 : 32;
  // Where a lane's piece lies, `bytes` further in its row: one address for all rows, with a bit or
  // two changed.
  FULMEN_DEVICE static int shifted(unsigned row, unsigned piece, int bytes) {
    const int lane = place(static_cast<int>(row), static_cast<int>(16 * piece));
    return (lane ^ bytes % kSwizzledBytes) + bytes / kSwizzledBytes * kSwizzledBytes;
  }
};

}  // namespace fulmen::kernels
