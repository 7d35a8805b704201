// Forward for few queries of latent attention on Hopper: many heads share one wide KV head, and the
// values are the first dims of its keys. A tile of these is loaded once, and both products read it.
//
//   S[64, 64] = Q[64, d] K[64, d]^T,  P = 2^(S - reference),  O[64, d_v] += P K[64, d_v]   a tile
//
// A workgroup has 64 rows - query heads, query after query - and a split of the keys. Tiles come in
// pairs. Of the two warpgroups that multiply, number g computes S and P of the pair's tile g, and
// has half g of O's dims (parts/latent_step.h). For these it multiplies P of both tiles: its own
// from registers, the other's from LDS. Probabilities of a row have one reference, which the
// warpgroups hand to each other: the first one's tile moves it, then the second one's.
//
// A wave of a third warpgroup, the loader, brings each tile in two parts, a half of the values
// each, as the products that read a part end at different times.
//
// LDS: Q and two tiles, and in a tile's last panel, after its scores, its probabilities
// (decode_latent_layout.h). Registers of a lane: O d_v / 4, S 32, P 16.
#include "forward/parts/latent_loader.h"
#include "forward/parts/latent_step.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// A wave's share of the 64 rows to LDS: each of the 8 waves has 8 of them.
FULMEN_DEVICE void bring_queries(const RowMap& map, int first_row) {
  constexpr int kLanes = 8, kRows = kWaveSize / kLanes, kWaves = 8;
#pragma unroll
  for (int n = 0; n < kBlockM / kWaves; n += kRows) {
    const int row = wave_id() * (kBlockM / kWaves) + n + lane_id() / kLanes;
    const Int64 r = first_row + row;
    const Element* const from =
        at<Element>(map.arguments.q, map.batch, map.query(map.clamp(r)), map.head(map.clamp(r)));
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const int dim = p * kPanelColumns + lane_id() % kLanes * 8;
      if (dim >= kHeadDim) continue;
      const Words<4> piece =
          r < map.end ? load_piece(from, dim, map.arguments.head_dim) : Words<4>{};
      lds_store(panel_place(row, dim, kBlockM), piece);
    }
  }
  lds_fence_for_matrices();
  wave_barrier();
  if (lane_id() == 0) mbarrier_arrive(kQueriesFull);
  mbarrier_wait(kQueriesFull, 0);
}

// A row's sum: of the tiles of both warpgroups.
FULMEN_DEVICE void add_sums(int group, float (&sum)[kRowsPerLane]) {
  const int first = kLdsLayout.sums_at + 4 * (wave_id() % 4 * kScoreTile);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    if (tile_column(0) == 0) lds_store(first + 4 * (kBlockM * group + tile_row(slot)), sum[slot]);
  }
  wave_barrier();
  if (lane_id() == 0) mbarrier_arrive(kSumsFull);
  mbarrier_wait(kSumsFull, 0);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const int at = first + 4 * tile_row(slot);
    sum[slot] = lds_load<float>(at) + lds_load<float>(at + 4 * kBlockM);
  }
}

// A wave's rows, half of their dims, to memory: the result, or a split's part of it. call: the
// whole call, a sequence of which the map has.
FULMEN_DEVICE void store(const ForwardArguments& call, const RowMap& map, int split, int group,
                         Int64 wave_row, const WaveRows& rows) {
  const ForwardArguments& a = map.arguments;
  const int first_dim = -group * kHeadDimV;
  float sums[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) sums[slot] = total(rows.state.sum[slot]);
  add_sums(group, sums);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 r = wave_row + tile_row(slot);
    const float max = row_maximum(rows.state, softmax_scale(a), slot);
    // Rows have no result where a page does not exist: NaN.
    const bool is_missed = kPaged && lds_load<int>(kLdsLayout.missing_at) != 0;
    const float sum = is_missed ? kNan : sums[slot];
    if (r >= map.end) continue;
    const Int64 i = map.query(r);
    const int head = map.head(r);
    if constexpr (kSplits) {
      const Int64 row_id = (static_cast<Int64>(map.batch) * a.num_heads + head) * call.seqlen_q + i;
      store_part(a, static_cast<Int64>(split) * a.batch * a.num_heads * call.seqlen_q + row_id,
                 slot, first_dim, rows, sum);
      continue;
    }
    const RowEnd end = end_row(a, head, max, sum);
    for_each_pair(a, slot, first_dim, rows, [&](int dim, float low, float high) {
      global_store(reinterpret_cast<unsigned*>(out_row(a, map.batch, head, i) + dim),
                   pack<Element>(low * end.output_factor, high * end.output_factor));
    });
    if (group == 0 && tile_column(0) == 0) store_lse(a, map.batch, head, i, end.lse);
  }
}

template <int kGroup>
FULMEN_DEVICE void multiply(const TmaForwardArguments& call, const Place& place, const RowMap& map,
                            const SplitKeys& split) {
  const Int64 wave_row = place.first_row + kScoreTile * (wave_id() % 4);
  LatentRows<kGroup> latent{map, wave_row};
  latent.rows.state.clear();
  bring_queries(map, place.first_row);
#pragma unroll 1
  for (Int64 key = split.first; key < split.any.end; key += 2 * kBlockN) latent.pair(split, key);
  store(call, map, place.split, kGroup, wave_row, latent.rows);
}

FULMEN_DEVICE void decode_latent(const TmaForwardArguments& call) {
  constexpr int kWaves = 4;  // of a warpgroup
  if (thread_id() == 0) {
    tma_prefetch(&call.k_map);
    mbarrier_init(kQueriesFull, 2 * kWaves);
    mbarrier_init(kPatch, 1);
    mbarrier_init(kSumsFull, 2 * kWaves);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      mbarrier_init(scores_done(tile), kWaves);
      mbarrier_init(probabilities_full(tile), kWaves);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mbarrier_init(tile_full(tile, half), 1);
        // The second half's last panel has the second tile's probabilities for the first warpgroup.
        mbarrier_init(tile_empty(tile, half), tile == 1 && half == 1 ? 2 * kWaves : kWaves);
      }
    }
    lds_store(kLdsLayout.missing_at, 0);
    mbarrier_init_fence();
  }
  grid_dependency_wait();
  barrier();
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(static_cast<const ForwardArguments&>(call), place.batch);
  const RowMap map = place.rows(a, 0);
  const SplitKeys split = SplitKeys::of(a, place, map);
  const int group = wave_id() / kWaves;
  if (group == 2) {
    setmaxnreg_dec<kRegisters.loader>();
    if (wave_id() == 2 * kWaves) LatentLoader{call, a, place, split}.run();
    return;
  }
  setmaxnreg_inc<kRegisters.consumer>();
  if (group == 0) {
    multiply<0>(call, place, map, split);
  } else {
    multiply<1>(call, place, map, split);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::TmaForwardArguments, fulmen::kernels::decode_latent)
