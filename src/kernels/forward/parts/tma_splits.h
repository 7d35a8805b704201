// Splits of prefill_tma.h (kSplits): a split's part of a work tile, for forward/decode_combine.h.
#pragma once

#include "tile/nvidia/warpgroup_parts.h"

namespace fulmen::kernels {

FULMEN_DEVICE void store_split(const RowMap& map, Int64 wave_row, int split, const WaveRows& rows) {
  const ForwardArguments& a = map.arguments;
  const Int64 head = static_cast<Int64>(map.batch) * a.num_heads + map.first_head;
  const Int64 split_rows =
      static_cast<Int64>(a.batch) * a.num_heads * a.seqlen_q - a.first_split_row;
  const Int64 first = split * split_rows + head * a.seqlen_q - a.first_split_row;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 i = wave_row + tile_row(slot);
    const float sum = total(rows.state.sum[slot]);
    if (i < a.seqlen_q) store_part(a, first + i, slot, 0, rows, sum);
  }
}

}  // namespace fulmen::kernels
