// Dropout of probabilities in registers.
#pragma once

#include "tile/dropout_tile.h"
#include "tile/modified_scores.h"

namespace fulmen::kernels {

// Zeroes dropped probabilities of 16 rows and the keys from first_key on. The others are not
// divided by 1 - p: outputs are (core/scores.h).
template <int kTiles>
FULMEN_DEVICE void drop(const RowMap& map, Int64 first_row, Int64 first_key,
                        TileRow<kTiles>& probability) {
  const DropoutMask mask(map.arguments, map.batch, map.first_head);
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
    const auto tile = DropoutTile<false>::of(mask, first_row, first_key + kScoreTile * f);
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      probability[f][e] = tile.keeps(e) ? probability[f][e] : 0.0F;
  }
}

}  // namespace fulmen::kernels
