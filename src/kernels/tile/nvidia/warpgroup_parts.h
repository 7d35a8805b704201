// Split keys: what one split's warpgroup gives to forward/decode_combine.h.
#pragma once

#include "tile/nvidia/warpgroup_rows.h"

namespace fulmen::kernels {

// A lane's outputs of a row, by two neighbours: visit(dim, low, high). first: the column of
// rows.out that is dim 0.
template <class Visit>
FULMEN_DEVICE void for_each_pair(const ForwardArguments& a, int slot, int first,
                                 const WaveRows& rows, const Visit& visit) {
#pragma unroll
  for (int g = 0; g < kProducts; ++g) {
#pragma unroll
    for (int d = 0; d < kProductTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        if (row_slot(e) != slot) continue;
        const int dim = kScoreTile * (g * kProductTiles + d) + tile_column(e) - first;
        if (kExactDims || static_cast<unsigned>(dim) < static_cast<unsigned>(a.head_dim_v))
          visit(dim, rows.out[g][d][e], rows.out[g][d][e + 1]);
      }
    }
  }
}
// What a split gives of a lane's row, `part` of all splits and rows, to forward/decode_combine.h:
// outputs that nothing was divided by, their maximum, and their sum over all lanes of the row.
FULMEN_DEVICE void store_part(const ForwardArguments& a, Int64 part, int slot, int first,
                              const WaveRows& rows, float sum) {
  const float factor = kFp8Products || (kKvNumbers && sum != 0) ? a.value_scale : 1.0F;
  for_each_pair(a, slot, first, rows, [&](int dim, float low, float high) {
    if constexpr (kFp8Products || kKvNumbers) {
      low *= factor;
      high *= factor;
    }
    global_store(reinterpret_cast<Words<2>*>(a.partial_out + part * a.head_dim_v + dim),
                 Words<2>{{float_bits(low), float_bits(high)}});
  });
  if (tile_column(0) != 0) return;
  global_store(a.partial_max + part, row_maximum(rows.state, softmax_scale(a), slot));
  global_store(a.partial_sum + part, sum);
}

}  // namespace fulmen::kernels
