// The end of a work tile of prefill_tma.h: O over its sums, and the log-sum-exp, to memory.
#pragma once

#include "forward/parts/tma_loaders.h"
#include "tile/lane_quads.h"
#include "tile/nvidia/warpgroup_rows.h"

namespace fulmen::kernels {

constexpr bool kStoresByTma = kLdsLayout.output_bytes > 0 && kWholeRows;
constexpr int kOutputPanelBytes = kScoreTile * kPanelRowBytes;

// Through the wave's panels of 16 rows in LDS.
FULMEN_DEVICE void give_to_tma(const TmaForwardArguments& call, const QueryTile& t,
                               const RowMap& map, Int64 wave_row, const WaveRows& rows) {
  const ForwardArguments& a = map.arguments;
  float factor[kRowsPerLane];
  end_rows(map, wave_row, rows.state, factor);
  // A lane's address is that of a row of one of four matrices of 8 x 8.
  const int lane_row = lane_id() % 16,
            panels_at = kLdsLayout.outputs_at + wave_id() * kPanelsV * kOutputPanelBytes;
  const int lane_at = panels_at + panel_place(lane_row, lane_id() / 16 * 8, kScoreTile);
  if (lane_id() == 0) tma_wait_read();
  wave_barrier();
#pragma unroll
  for (int d = 0; d < kHeadDimV / kScoreTile; ++d) {
    const auto& tile = rows.out[0][d];
    Words<4> words;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      words.word[w] = pack<Element>(tile[2 * w] * factor[w % 2], tile[2 * w + 1] * factor[w % 2]);
    stmatrix_x4((lane_at ^ d % 4 * 32) + d / 4 * kOutputPanelBytes, words);
  }
  lds_fence_for_matrices();
  wave_barrier();
  if (lane_id() == 0 && wave_row < a.seqlen_q) {
    const BoxPlace place = t.queries_in_map(call);
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) {
      tma_store(&call.out_map, panels_at + p * kOutputPanelBytes, p * kPanelColumns,
                place.row + wave_row, t.head, place.batch);
    }
  }
}
// From registers to memory: the four lanes of a row exchange their pairs for pieces of 16 bytes, of
// two tiles at a time.
FULMEN_DEVICE void store(const RowMap& map, Int64 wave_row, const WaveRows& rows) {
  const ForwardArguments& a = map.arguments;
  float factor[kRowsPerLane];
  end_rows(map, wave_row, rows.state, factor);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 i = wave_row + tile_row(slot), there = map.clamp(i);
    Element* const row = out_row(a, map.batch, map.head(there), map.query(there));
#pragma unroll
    for (int g = 0; g < kProducts; ++g) {
#pragma unroll
      for (int d = 0; d < kProductTiles; d += 2) {
        const bool two = d + 1 < kProductTiles;
        const float f = factor[slot];
        const auto &low = rows.out[g][d], &high = rows.out[g][two ? d + 1 : d];
        Words<4> piece{{pack<Element>(low[2 * slot] * f, low[2 * slot + 1] * f),
                        pack<Element>(low[2 * slot + 4] * f, low[2 * slot + 5] * f),
                        pack<Element>(high[2 * slot] * f, high[2 * slot + 1] * f),
                        pack<Element>(high[2 * slot + 4] * f, high[2 * slot + 5] * f)}};
        transpose_quads(piece.word);
        const int part = lane_id() % 4, dim = kScoreTile * (g * kProductTiles + d) + 8 * part;
        if (i < map.end && (two || part < 2)) store_piece(row, dim, a.head_dim_v, piece);
      }
    }
  }
}
FULMEN_DEVICE void store_outputs(const TmaForwardArguments& call, const QueryTile& t,
                                 const RowMap& map, Int64 wave_row, const WaveRows& rows) {
  if constexpr (kStoresByTma) {
    // The rows behind a packed sequence's end are the next one's, those of heads are no box.
    if (!kVariable || (!map.is_shared && wave_row + kScoreTile <= map.end))
      return give_to_tma(call, t, map, wave_row, rows);
  }
  store(map, wave_row, rows);
}

}  // namespace fulmen::kernels
