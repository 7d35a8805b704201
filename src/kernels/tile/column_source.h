// Where a tile of columns lies in memory.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

// kBlockN rows of one head.
struct ColumnSource {
  const Element* rows;  // the tile's first
  Int64 stride;
  int dims;
  int last;  // the last row that is there

  FULMEN_DEVICE static ColumnSource of(const Element* head, Int64 stride, int dims, Int64 first,
                                       Int64 end) {
    const Int64 left = end - first;
    return {head + first * stride, stride, dims,
            static_cast<int>(left < kBlockN ? left - 1 : kBlockN - 1)};
  }
  FULMEN_DEVICE int clamp(int row) const { return row < last ? row : last; }
};

}  // namespace fulmen::kernels
