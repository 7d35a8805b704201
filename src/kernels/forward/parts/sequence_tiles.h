// Work tiles of sequences of different lengths (kVariable): which ones a workgroup of prefill_tma.h
// takes, and where their rows are. The dynamic scheduler takes them from the list that
// sequences/work_tiles.h made.
#pragma once

#include "core/matrix.h"
#include "core/sequence.h"
#include "core/shared_heads.h"
#include "sequences/work_tile_moves.h"

namespace fulmen::kernels {

// A work tile of one head, or of those of one KV head that share it.
struct HeadTile {
  WorkTile tile;
  int head;  // counts heads that share tiles as one; below 0: there are no more

  FULMEN_DEVICE bool exists() const { return head >= 0; }
  // The nth of all. A run's tiles come for section_heads heads, whose keys and values the L2 holds,
  // then for the next ones.
  FULMEN_DEVICE static HeadTile nth(const ForwardArguments& a, unsigned nth) {
    const auto all = static_cast<unsigned>(global_load(a.work.count)),
               heads = static_cast<unsigned>(a.num_heads) / static_cast<unsigned>(shared_heads(a)),
               section = static_cast<unsigned>(a.section_heads),
               most = static_cast<unsigned>(a.work.run_tiles);
    if (nth >= all * heads) return {{}, -1};
    const unsigned first = nth / (most * heads) * most, rest = nth - first * heads,
                   tiles = all - first < most ? all - first : most;
    const unsigned first_head = rest / (tiles * section) * section;
    const unsigned in_section = rest - first_head * tiles,
                   section_heads = heads - first_head < section ? heads - first_head : section;
    return {load_work_tile(a.work.tiles + first + in_section / section_heads),
            static_cast<int>(first_head + in_section % section_heads)};
  }
};

// The wave that takes tiles tells the other waves of the next one, through LDS and two mbarriers.
template <int kFull, int kEmpty>
struct TileRelay {
  int parity = 0;

  // store(): one lane's, to LDS.
  template <class Store>
  FULMEN_DEVICE void tell(const Store& store) {
    mbarrier_wait(kEmpty, parity ^ 1);
    if (lane_id() == 0) {
      store();
      mbarrier_arrive(kFull);
    }
    parity ^= 1;
  }
  // load(): what the lanes of a wave get, the same for all.
  template <class Load>
  FULMEN_DEVICE auto told(const Load& load) {
    mbarrier_wait(kFull, parity);
    const auto next = load();
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(kEmpty);
    parity ^= 1;
    return next;
  }
};

// In LDS at kAt.
template <int kAt, int kFull, int kEmpty>
struct NextHeadTile {
  static constexpr int kHeadAt = kAt + static_cast<int>(sizeof(WorkTile));
  TileRelay<kFull, kEmpty> relay;

  FULMEN_DEVICE void tell(const HeadTile& next) {
    relay.tell([&] {
      lds_store_work_tile(kAt, next.tile);
      lds_store(kHeadAt, next.head);
    });
  }
  FULMEN_DEVICE HeadTile told() {
    return relay.told(
        [] { return HeadTile{lds_load_work_tile(kAt), broadcast(lds_load<int>(kHeadAt))}; });
  }
};

// Visits a workgroup's tiles. kTakes: this wave takes them, others are told.
template <bool kTakes, class Next, class Visit>
FULMEN_DEVICE void for_each_head_tile(const ForwardArguments& a, Next next, const Visit& visit) {
  HeadTile now = HeadTile::nth(a, static_cast<unsigned>(workgroup_id()));
  while (now.exists()) {
    if constexpr (kTakes) {
      // Its number, and then its entry, are in flight while this one's keys are requested.
      const auto later = static_cast<unsigned>(a.step_tile + counter_fetch_add(a.tile_counter));
      const HeadTile following = HeadTile::nth(a, later);
      visit(now);
      next.tell(following);
      now = following;
    } else {
      visit(now);
      now = next.told();
    }
  }
}

}  // namespace fulmen::kernels
