// Tiles of columns in flight from memory to LDS, as rows and, on AMD, transposed. As tile/stage.h, for any tensor:
//   fetch(...)          starts a tile's loads; rows past the end repeat the last one
//   commit_columns()    ends what one step fetches; columns_arrived() waits for it
//   publish(...)        the tile is in LDS after the barrier that follows
// Rows that `alive` says no to become 0.
#pragma once

#include "tile/layout.h"
#include "tile/rows.h"
#include "tile/values.h"

namespace fulmen::kernels {

// kBlockN rows of one head.
struct ColumnSource {
  const Element* rows;  // the tile's first
  Int64 stride;
  int dims;
  int last;  // the last row that is there

  FULMEN_DEVICE static ColumnSource of(const Element* head, Int64 stride, int dims, Int64 first, Int64 end) {
    const Int64 left = end - first;
    return {head + first * stride, stride, dims, static_cast<int>(left < kBlockN ? left - 1 : kBlockN - 1)};
  }
  FULMEN_DEVICE int clamp(int row) const { return row < last ? row : last; }
};

}  // namespace fulmen::kernels

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/columns.h"
#else
#include "tile/amd/columns.h"
#endif
