// A workgroup of prefill_tma.h goes from tile to tile of queries, all its waves to the same ones.
#pragma once

#include "forward/parts/tma_loaders.h"

namespace fulmen::kernels {

// Dynamic scheduler: the warp that loads keys takes the next tile when it has requested all of this
// one, and tells the other warps.
struct NextTile {
  TileRelay<kNextFull, kNextEmpty> relay;

  FULMEN_DEVICE unsigned take(const ForwardArguments& a) {
    const auto nth = static_cast<unsigned>(a.step_tile + counter_fetch_add(a.tile_counter));
    relay.tell([&] { lds_store(kLdsLayout.next_at, nth); });
    return nth;
  }
  FULMEN_DEVICE unsigned told() {
    return relay.told([] {
      return static_cast<unsigned>(
          broadcast(static_cast<int>(lds_load<unsigned>(kLdsLayout.next_at))));
    });
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
