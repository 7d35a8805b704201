// forward/decode_latent.h: the wave that asks the TMA for tiles.
#pragma once

#include "forward/parts/latent_tile.h"

namespace fulmen::kernels {

struct LatentLoader {
  const TmaForwardArguments& call;
  const ForwardArguments& a;  // of the sequence
  const Place& place;
  const SplitKeys& split;
  int parity = 0, patch_parity = 0;

  FULMEN_DEVICE void run() {
    // Where several workgroups have rows of the same keys, the L2 keeps these.
    const L2Policy policy = call.row_tiles > 1 ? L2Policy::evict_last() : L2Policy::evict_first();
#pragma unroll 1
    for (Int64 key = split.first; key < split.any.end; key += 2 * kBlockN) {
      tile<0>(key, policy);
      if (key + kBlockN < split.any.end) tile<1>(key + kBlockN, policy);
      parity ^= 1;
    }
  }

 private:
  template <int kTile>
  FULMEN_DEVICE void tile(Int64 key, L2Policy policy) {
    // The table is read while the buffer is not empty yet.
    const KeyBox box = KeyBox::of(a, place, split, key);
    // Consumers see it: they wait for both halves.
    if (kPaged && any_lane(box.is_missed) && lane_id() == 0) lds_store(kLdsLayout.missing_at, 1);
    load<kTile, 0, 0, kHalfPanels>(key, box, policy);
    load<kTile, 1, kHalfPanels, kLdsLayout.tile_panels>(key, box, policy);
  }
  template <int kTile, int kHalf, int kFirst, int kEnd>
  FULMEN_DEVICE void load(Int64 key, const KeyBox& box, L2Policy policy) {
    const int full = tile_full(kTile, kHalf);
    const bool patched = split.has_foreign_keys(key);
    mbarrier_wait(tile_empty(kTile, kHalf), parity ^ 1);
    load_panels<kFirst, kEnd>(tile_at(kTile), call.k_map, place, box, patched ? kPatch : full,
                              policy);
    if (!patched) return;
    mbarrier_wait(kPatch, patch_parity);
    patch_parity ^= 1;
    clear_foreign_rows<kFirst, kEnd>(tile_at(kTile), split, key);
    if (lane_id() == 0) mbarrier_arrive(full);
  }
};

}  // namespace fulmen::kernels
