// NVIDIA: cp.async to swizzled rows.
#pragma once

#include "tile/columns.h"
#include "tile/nvidia/swizzle.h"

namespace fulmen::kernels {

template <int kDims, bool kValues>
class ShortTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int at, int /*values_at*/,
                           const Alive& alive) {
    // A lane has the same piece of every so many rows.
    constexpr int kLanes = kDims <= 32    ? 4
                           : kDims <= 64  ? 8
                           : kDims <= 128 ? 16
                                          : 32,
                  kRows = kWorkgroup / kLanes;
    const auto lane = static_cast<unsigned>(recompute(thread_id()));
    const int row = static_cast<int>(lane / kLanes), piece = static_cast<int>(lane % kLanes);
    if (8 * piece >= kDims) return;
    const bool there = kExactDims || 8 * piece < source.dims;
    const int stride = kWholeRows ? static_cast<int>(source.stride) : 0;  // whole rows are near
    const Element* from = source.rows + (there ? 8 * piece : 0);
#pragma unroll
    for (int n = 0; n < kBlockN; n += kRows) {
      if (kBlockN % kRows != 0 && row + n >= kBlockN) break;
      const int to =
          at + row * Rows::kPitch + (16 * piece ^ Rows::mask(row + n % 8)) + n * Rows::kPitch;
      const int asked = kWholeTiles ? row + n : source.clamp(row + n);
      if constexpr (kWholeRows) {
        copy_async_16(to, from + asked * stride, there && alive(asked));
      } else {
        lds_store(to, there && alive(asked)
                          ? load_piece(source.rows + asked * source.stride, 8 * piece, source.dims)
                          : Words<4>{});
      }
    }
  }
  FULMEN_DEVICE void publish(int /*at*/, int /*values_at*/) const {}

  // 16 rows from `row` on, a multiple of 8, and kTileMmaK dims. lane: own_lane().
  FULMEN_DEVICE static KeyOperand keys(unsigned lane, int at, int row, int depth) {
    return Rows::keys(lane, at, row, depth);
  }
  FULMEN_DEVICE static QueryOperand queries(unsigned lane, int at, int row, int depth) {
    return Rows::queries(lane, at, row, depth);
  }
  FULMEN_DEVICE static ValueOperand values(unsigned lane, int at, int /*values_at*/, int tile,
                                           int dims) {
    return Rows::values(lane, at, tile, dims);
  }
  // 16 rows from `row` on as keys of a tensor that fetch() brought to `at`.
  FULMEN_DEVICE static KeyOperand fetched_or_loaded(unsigned lane, int at, const Element* /*rows*/,
                                                    Int64 /*stride*/, int row, Int64 /*end*/,
                                                    int depth, int /*dims*/) {
    return keys(lane, at, row, depth);
  }

 private:
  using Rows = SwizzledRows<kDims>;
};

}  // namespace fulmen::kernels
