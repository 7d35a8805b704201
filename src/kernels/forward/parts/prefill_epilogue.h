// The end of prefill.h: O over its sums, and the log-sum-exp, to memory.
#pragma once

#include "forward/parts/prefill_step.h"
#include "tile/wave_outputs.h"

namespace fulmen::kernels {

// A lane's outputs of one row, from registers.
FULMEN_DEVICE void store_row(const ForwardArguments& a, Element* row, const OutputFragment& out,
                             int t, int slot, float factor) {
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
    for (int e = 0; e < kElements; e += kOutputRun) {
      if (row_slot(e) != slot) continue;
      float run[kOutputRun];
#pragma unroll
      for (int n = 0; n < kOutputRun; ++n) run[n] = out[t][d][e + n] * factor;
      store_run(row, first_value_dim() + kScoreTile * d + output_column(e), a.head_dim_v, run);
    }
  }
}

FULMEN_DEVICE void finish(const PrefillTask& task, const WaveRows& rows) {
  const RowMap& map = task.map;
  const ForwardArguments& reloaded = reload(task.call, task.wave_row);
  const ForwardArguments& a = sequence_of(reloaded, map.batch);
  float of_values = 1.0F;
  if constexpr (kQuantized)
    of_values = scale_of_outputs(a, map.batch, map.first_head / a.group_size);
  if constexpr (kCodeValues) of_values = scale_of_value_codes(a, map.batch, map.first_head);
  if constexpr (kStoresThroughLds && !kPersistent) barrier();  // every lane has read its queries
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const RowState& state = rows.state[t];
      const Int64 i = task.wave_row + kScoreTile * t + tile_row(slot);
      RowEnd end = end_row(a, map.first_head, rows.codes.maximum(a, map, state, i, t, slot),
                           total(state.sum[slot]));
      // Outputs of no keys are 0, whatever the scale is.
      if constexpr (kQuantized || kCodeValues)
        end.output_factor *= total(state.sum[slot]) == 0 ? 1.0F : of_values;
      if constexpr (kStoresThroughLds && kPersistent) {
        const int at = task.first_row / 2;
        leave_row(rows.out, t, slot, at, end.output_factor);
        wave_barrier();
        store_rows<8>(a, map, at, task.wave_row + (kScoreTile * t + 8 * slot));
      } else if constexpr (kStoresThroughLds) {
        leave_row(rows.out, t, slot, task.first_row + kScoreTile * t + 8 * slot, end.output_factor);
      }
      if (i >= a.seqlen_q) continue;
      Element* row = out_row(a, map.batch, map.first_head, i);
      if constexpr (!kStoresThroughLds) store_row(a, row, rows.out, t, slot, end.output_factor);
      // One of the lanes that share the row.
      if (tile_column(0) == 0 && part_of_wave() == 0)
        store_lse(a, map.batch, map.first_head, i, end.lse);
    }
  }
  if constexpr (kStoresThroughLds && !kPersistent) {
    barrier();
    constexpr int kRows = kScoreTile * kRowTiles / kValueParts;  // whole ones of each wave
    const int first = kRows * part_of_wave();
    store_rows<kRows>(a, map, task.first_row + first, task.wave_row + first);
  }
}

}  // namespace fulmen::kernels
