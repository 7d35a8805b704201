// A whole tensor of a short sequence in LDS, as rows and, on AMD, transposed: on its way from memory, and from there as operands.
// On NVIDIA rows are swizzled (tile/swizzle.h).
#pragma once

#include "tile/columns.h"
#include "tile/layout.h"
#if defined(FULMEN_TARGET_SM80)
#include "tile/swizzle.h"
#endif

namespace fulmen::kernels {

// Addresses that follow from a lane's number need not stay in registers from board to board.
FULMEN_DEVICE unsigned own_lane() { return static_cast<unsigned>(recompute(lane_id())); }

#if defined(FULMEN_TARGET_SM80)

template <int kDims, bool kValues>
class ShortTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int at, int /*values_at*/, const Alive& alive) {
    // A lane has the same piece of every so many rows.
    constexpr int kLanes = kDims <= 32 ? 4 : kDims <= 64 ? 8 : kDims <= 128 ? 16 : 32, kRows = kWorkgroup / kLanes;
    const auto lane = static_cast<unsigned>(recompute(thread_id()));
    const int row = static_cast<int>(lane / kLanes), piece = static_cast<int>(lane % kLanes);
    if (8 * piece >= kDims) return;
    const bool there = kExactDims || 8 * piece < source.dims;
    const int stride = kWholeRows ? static_cast<int>(source.stride) : 0;  // whole rows are near
    const Element* from = source.rows + (there ? 8 * piece : 0);
#pragma unroll
    for (int n = 0; n < kBlockN; n += kRows) {
      if (kBlockN % kRows != 0 && row + n >= kBlockN) break;
      const int to = at + row * Rows::kPitch + (16 * piece ^ Rows::mask(row + n % 8)) + n * Rows::kPitch;
      const int asked = kWholeTiles ? row + n : source.clamp(row + n);
      if constexpr (kWholeRows) {
        copy_async_16(to, from + asked * stride, there && alive(asked));
      } else {
        lds_store(to, there && alive(asked) ? load_piece(source.rows + asked * source.stride, 8 * piece, source.dims) : Words<4>{});
      }
    }
  }
  FULMEN_DEVICE void publish(int /*at*/, int /*values_at*/) const {}

  // 16 rows from `row` on, a multiple of 8, and kTileMmaK dims. lane: own_lane().
  FULMEN_DEVICE static KeyOperand keys(unsigned lane, int at, int row, int depth) { return Rows::keys(lane, at, row, depth); }
  FULMEN_DEVICE static QueryOperand queries(unsigned lane, int at, int row, int depth) {
    return Rows::queries(lane, at, row, depth);
  }
  FULMEN_DEVICE static ValueOperand values(unsigned lane, int at, int /*values_at*/, int tile, int dims) {
    return Rows::values(lane, at, tile, dims);
  }

 private:
  using Rows = SwizzledRows<kDims>;
};

#else

template <int kDims, bool kValues>
class ShortTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int at, int values_at, const Alive& alive) {
    tile_.fetch(source, at, values_at, kPitch, alive);
  }
  FULMEN_DEVICE void publish(int at, int values_at) const { tile_.publish(at, values_at, kPitch); }

  FULMEN_DEVICE static KeyOperand keys(unsigned /*lane*/, int at, int row, int depth) {
    return lds_key_operand(at + row * kPitch + 2 * kTileMmaK * depth, kPitch);
  }
  FULMEN_DEVICE static QueryOperand queries(unsigned /*lane*/, int at, int row, int depth) {
    return lds_query_operand(at + row * kPitch + 2 * kTileMmaK * depth, kPitch);
  }
  FULMEN_DEVICE static ValueOperand values(unsigned /*lane*/, int /*at*/, int values_at, int tile, int dims) {
    return lds_value_operand<transposed_pitch(kBlockN)>(values_at, tile, dims);
  }

 private:
  static constexpr int kPitch = 2 * kDims + 16;
  ColumnTile<kDims, kValues> tile_;
};

#endif

}  // namespace fulmen::kernels
