// AMD: through registers, as tile/amd/columns.h.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/columns.h"

namespace fulmen::kernels {

template <int kDims, bool kValues>
class ShortTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int at, int values_at, const Alive& alive) {
    tile_.fetch(source, at, values_at, kPitch, alive);
  }
  FULMEN_DEVICE void publish(int at, int values_at) const { tile_.publish(at, values_at, kPitch); }

  FULMEN_DEVICE static KeyOperand keys(unsigned /*lane*/, int at, int row, int depth) {
    return lds_row_operand(at + row * kPitch + 2 * kTileMmaK * depth, kPitch);
  }
  FULMEN_DEVICE static QueryOperand queries(unsigned /*lane*/, int at, int row, int depth) {
    return lds_row_operand(at + row * kPitch + 2 * kTileMmaK * depth, kPitch);
  }
  FULMEN_DEVICE static ValueOperand values(unsigned /*lane*/, int at, int values_at, int step,
                                           int dims) {
    constexpr int kTransposedPitch = algorithm::transposed_pitch(kBlockN, kValueDepth);
    return column_values<kDims, kTransposedPitch>(kCopiesValues ? values_at : at, step, dims);
  }
  // 16 rows from `row` on as keys, straight from memory: LDS has no room for a tensor that is read
  // once.
  FULMEN_DEVICE static KeyOperand fetched_or_loaded(unsigned /*lane*/, int /*at*/,
                                                    const Element* rows, Int64 stride, int row,
                                                    Int64 end, int depth, int dims) {
    return load_row_operand(rows, stride, row, end, kTileMmaK * depth, dims);
  }

 private:
  static constexpr int kPitch = 2 * kDims + kRowPadding;
  ColumnTile<kDims, kValues && kCopiesValues> tile_;
};

}  // namespace fulmen::kernels
