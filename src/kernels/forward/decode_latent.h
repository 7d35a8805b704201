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

namespace fulmen::kernels {

// A wave's share of the 64 rows to LDS: each of the 8 waves has 8 of them.
FULMEN_DEVICE void bring_queries(const RowMap& map, int first_row) {
  constexpr int kOfWave = kBlockM / 8;
  const int row = wave_id() * kOfWave;
  queries_to_lds<kOfWave>(map, first_row + row, 0, row);
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

// A wave's rows, half of their dims, to memory. call: the whole call, a sequence of which the map
// has.
FULMEN_DEVICE void store(const ForwardArguments& call, const RowMap& map, int split, int group,
                         Int64 wave_row, const WaveRows& rows) {
  float sums[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) sums[slot] = total(rows.state.sum[slot]);
  add_sums(group, sums);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    // Rows have no result where a page does not exist: NaN.
    const bool is_missed = kPaged && lds_load<int>(kLdsLayout.missing_at) != 0;
    store_packed_row(call, map, split, slot, wave_row + tile_row(slot), -group * kHeadDimV, rows,
                     is_missed ? kNan : sums[slot], group == 0);
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
