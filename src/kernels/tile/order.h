// In which order a workgroup goes over the other side's tiles.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

// The tiles of a workgroup's keys: first those at the band's edges and the last, partial one, which
// need masks, then the others, so that the long loop has no code for masks.
struct TileOrder {
  Int64 begin;  // the first key of the first tile
  int count, masked;
  int whole_begin, whole_end;  // tiles [whole_begin, whole_end) need no masks

  FULMEN_DEVICE static TileOrder of(const algorithm::KeyRange& keys,
                                    const algorithm::KeyRange& whole) {
    TileOrder order{keys.begin, static_cast<int>((keys.end - keys.begin + kBlockN - 1) / kBlockN),
                    0, 0, 0};
    if (whole.end > whole.begin) {
      order.whole_begin = static_cast<int>((whole.begin - keys.begin + kBlockN - 1) / kBlockN);
      order.whole_end = static_cast<int>((whole.end - keys.begin) / kBlockN);
      if (order.whole_end < order.whole_begin) order.whole_end = order.whole_begin;
    }
    order.masked = order.count - (order.whole_end - order.whole_begin);
    return order;
  }
  FULMEN_DEVICE Int64 first_key(int n) const {
    const int tile = n >= masked       ? n - masked + whole_begin
                     : n < whole_begin ? n
                                       : n - whole_begin + whole_end;
    return begin + static_cast<Int64>(tile) * kBlockN;
  }
};

}  // namespace fulmen::kernels
