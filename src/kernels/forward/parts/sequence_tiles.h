// Work tiles of sequences of different lengths (kVariable): which ones a workgroup of prefill_tma.h
// takes, and where their rows are. The dynamic scheduler takes them from the list that
// sequences/work_tiles.h made.
#pragma once

#include "core/matrix.h"
#include "core/sequence.h"
#include "sequences/work_tile_moves.h"

namespace fulmen::kernels {

// A work tile of one head.
struct HeadTile {
  WorkTile tile;
  int head;  // below 0: there are no more

  FULMEN_DEVICE bool exists() const { return head >= 0; }
  // The nth of all. A run's tiles come for section_heads heads, whose keys and values the L2 holds,
  // then for the next ones.
  FULMEN_DEVICE static HeadTile nth(const ForwardArguments& a, unsigned nth) {
    const auto all = static_cast<unsigned>(global_load(a.work.count)),
               heads = static_cast<unsigned>(a.num_heads),
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

// The key loader takes the next tile and tells the other waves, through LDS at kAt and two
// mbarriers.
template <int kAt, int kFull, int kEmpty>
struct NextHeadTile {
  static constexpr int kHeadAt = kAt + static_cast<int>(sizeof(WorkTile));
  int parity = 0;

  FULMEN_DEVICE void tell(const HeadTile& next) {
    mbarrier_wait(kEmpty, parity ^ 1);
    if (lane_id() == 0) {
      lds_store_work_tile(kAt, next.tile);
      lds_store(kHeadAt, next.head);
      mbarrier_arrive(kFull);
    }
    parity ^= 1;
  }
  FULMEN_DEVICE HeadTile told() {
    mbarrier_wait(kFull, parity);
    const HeadTile next{lds_load_work_tile(kAt), broadcast(lds_load<int>(kHeadAt))};
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(kEmpty);
    parity ^= 1;
    return next;
  }
};

// Visits a workgroup's tiles. kTakes: this wave takes them, others are told.
template <bool kTakes, class Next, class Visit>
FULMEN_DEVICE void for_each_head_tile(const ForwardArguments& a, Next next, const Visit& visit) {
  HeadTile now = HeadTile::nth(a, static_cast<unsigned>(workgroup_id()));
  while (now.exists()) {
    if constexpr (kTakes) {
      // Its number, and then its entry, are on their way while this one's keys are requested.
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
