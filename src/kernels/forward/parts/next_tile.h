// A workgroup of prefill_tma.h goes from tile to tile of queries, all its waves to the same ones.
#pragma once

#include "forward/parts/tma_loaders.h"

namespace fulmen::kernels {

// Dynamic scheduler: the warp that loads keys takes the next tile when it has requested all of this
// one, and tells the other warps.
struct NextTile {
  int parity = 0;

  FULMEN_DEVICE unsigned take(const ForwardArguments& a) {
    const auto nth = static_cast<unsigned>(a.step_tile + counter_fetch_add(a.tile_counter));
    mbarrier_wait(kNextEmpty, parity ^ 1);
    if (lane_id() == 0) {
      lds_store(kLdsLayout.next_at, nth);
      mbarrier_arrive(kNextFull);
    }
    parity ^= 1;
    return nth;
  }
  FULMEN_DEVICE unsigned told() {
    mbarrier_wait(kNextFull, parity);
    const auto nth =
        static_cast<unsigned>(broadcast(static_cast<int>(lds_load<unsigned>(kLdsLayout.next_at))));
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(kNextEmpty);
    parity ^= 1;
    return nth;
  }
};

// Visits a workgroup's tiles. kIsKeyLoader: this warp takes tiles from the counter, others are
// told.
template <bool kIsKeyLoader, class Visit>
FULMEN_DEVICE void for_each_tile(const ForwardArguments& a, const Visit& visit) {
  if constexpr (kVariable) {
    for_each_head_tile<kIsKeyLoader>(a, NextHeadTile<kLdsLayout.next_at, kNextFull, kNextEmpty>{},
                                     [&](const HeadTile& tile) { visit(QueryTile::of(a, tile)); });
    return;
  }
  QueryTiles tiles(a);
  NextTile next;
  do {
    visit(QueryTile::of(a, tiles.block(), tiles.split()));
    if constexpr (kDynamicTiles) {
      tiles.place(kIsKeyLoader ? next.take(a) : next.told());
    } else {
      tiles.advance();
    }
  } while (kPersistent && tiles.there());
}

}  // namespace fulmen::kernels
