// Dropout of probabilities in registers.
#pragma once

#include "dropout.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// Of 16 rows and the keys from first_key on.
template <int kTiles>
FULMEN_DEVICE void drop(const RowMap& map, Int64 first_row, Int64 first_key, float (&probability)[kTiles][kElements]) {
  DropoutMask mask(map.arguments, map.batch, map.first_head);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) probability[f][e] *= mask.factor(first_row + tile_row(slot), first_key + 16 * f + tile_column(e));
      }
    }
  }
}

}  // namespace fulmen::kernels
