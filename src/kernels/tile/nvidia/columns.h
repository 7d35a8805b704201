// NVIDIA: cp.async copies rows to LDS, swizzled; both products read [row][dim].
#pragma once

#include "tile/column_source.h"
#include "tile/nvidia/swizzle.h"
#include "tile/rows.h"
#include "tile/values.h"

namespace fulmen::kernels {

// A group of copies for columns_arrived().
FULMEN_DEVICE void commit_columns() { copy_commit(); }
FULMEN_DEVICE void columns_arrived() { copy_wait<0>(); }

// kRows rows of kDims, rounded up. All lanes copy.
template <int kDims, bool kValues, int kLanes = kWorkgroup, int kRows = kBlockN>
class ColumnTile {
  static_assert(kLanes == kWorkgroup);

 public:
  template <class Source, class Alive>
  FULMEN_DEVICE void fetch(const Source& source, int at, int /*values_at*/, int /*pitch*/,
                           const Alive& alive) {
    for_pieces([&](int row, int dim) {
      const int from = source.clamp(row), to = at + SwizzledRows<kDims>::place(row, 2 * dim);
      const bool valid = (kExactDims || dim < source.dims) && alive(from);
      if constexpr (kWholeRows) {
        copy_async_16(to, valid ? source.rows + from * source.stride + dim : source.rows, valid);
      } else {
        lds_store(to, valid ? load_piece(source.rows + from * source.stride, dim, source.dims)
                            : Words<4>{});
      }
    });
  }
  FULMEN_DEVICE void publish(int /*at*/, int /*values_at*/, int /*pitch*/) const {}

 private:
  template <class Body>
  FULMEN_DEVICE static void for_pieces(const Body& body) {
    constexpr int kPieces = kDims / 8, kAll = kRows * kPieces;
#pragma unroll
    for (int n = 0; n < (kAll + kWorkgroup - 1) / kWorkgroup; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && index >= kAll) break;
      body(static_cast<int>(static_cast<unsigned>(index) / kPieces),
           static_cast<int>(static_cast<unsigned>(index) % kPieces) * 8);
    }
  }
};

// Rows of kDims in LDS: where byte `byte` of a row lies, from the first of 8 on; 16 rows and kMmaK
// dims as an operand, or kTileMmaK dims in the registers that the instruction wants.
template <int kDims>
struct LdsRows {
  static constexpr int kPitch = SwizzledRows<kDims>::kPitch;
  FULMEN_DEVICE static int place(int row, int byte) {
    return SwizzledRows<kDims>::place(row, byte);
  }
  FULMEN_DEVICE static RowOperand operand(int at, int depth, unsigned lane = lane_id()) {
    return SwizzledRows<kDims>::rows(lane, at, depth);
  }
  FULMEN_DEVICE static QueryOperand query_operand(int at, int depth) {
    return SwizzledRows<kDims>::queries(lane_id(), at, 0, depth);
  }
  FULMEN_DEVICE static KeyOperand key_operand(int at, int depth) {
    return SwizzledRows<kDims>::keys(lane_id(), at, 0, depth);
  }
};
// 16 rows of a tile of columns as values, and 16 dims.
template <int kDims, int kValuePitch>
FULMEN_DEVICE ValueOperand column_values(int at, int tile, int dims) {
  return SwizzledRows<kDims>::values(lane_id(), at, tile, dims);
}

}  // namespace fulmen::kernels
