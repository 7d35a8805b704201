// Query rows of decode_tma.h and decode_latent.h, the heads of a KV head packed into them: how they
// come to LDS, and where a wave's results go.
#pragma once

#include "core/matrix.h"
#include "tile/nvidia/warpgroup_parts.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// Dims in LDS: whole panels, zeros past the last one.
constexpr int kPanels = (kHeadDim + kPanelColumns - 1) / kPanelColumns;

// kCount rows from first_row on become those of the tile at `at` from row tile_row on. Rows that do
// not exist are zeros. Products see them behind the next barrier.
template <int kCount>
FULMEN_DEVICE void queries_to_lds(const RowMap& map, Int64 first_row, int at, int tile_row) {
  constexpr int kLanes = 8, kRows = kWaveSize / kLanes;
#pragma unroll
  for (int n = 0; n < kCount; n += kRows) {
    const int row = tile_row + n + lane_id() / kLanes;
    const Int64 r = first_row + n + lane_id() / kLanes;
    const Int64 loaded = map.clamp(r);
    const Element* const from =
        kernels::at<Element>(map.arguments.q, map.batch, map.query(loaded), map.head(loaded));
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const int dim = p * kPanelColumns + lane_id() % kLanes * 8;
      if (dim >= kHeadDim) continue;
      const Words<4> piece =
          r < map.end ? load_piece(from, dim, map.arguments.head_dim) : Words<4>{};
      lds_store(at + panel_place(row, dim, kBlockM), piece);
    }
  }
  lds_fence_for_matrices();
  wave_barrier();
}

// A lane's row r to memory: the result, or a split's part of it. call: the whole call, a sequence
// of which the map has. first_dim: the column of rows.out that is dim 0. sum: of all lanes of the
// row.
FULMEN_DEVICE void store_packed_row(const ForwardArguments& call, const RowMap& map, int split,
                                    int slot, Int64 r, int first_dim, const WaveRows& rows,
                                    float sum, bool has_lse) {
  const ForwardArguments& a = map.arguments;
  const float max = row_maximum(rows.state, softmax_scale(a), slot);
  if (r >= map.end) return;
  const Int64 i = map.query(r);
  const int head = map.head(r);
  if constexpr (kSplits) {
    store_part(a, map.part(call, split, head, i), slot, first_dim, rows, sum);
    return;
  }
  const RowEnd end = end_row(a, head, max, sum);
  for_each_pair(a, slot, first_dim, rows, [&](int dim, float low, float high) {
    global_store(reinterpret_cast<unsigned*>(out_row(a, map.batch, head, i) + dim),
                 pack<Element>(low * end.output_factor, high * end.output_factor));
  });
  if (has_lse && tile_column(0) == 0) store_lse(a, map.batch, head, i, end.lse);
}

}  // namespace fulmen::kernels
