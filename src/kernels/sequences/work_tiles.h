// Lists the work tiles of sequences of different lengths, in the launch before the kernel that
// takes them (forward/parts/sequence_tiles.h), and clears its tile counter. One workgroup.
//
//   tiles of sequence 0, of sequence 1, ...      from the first queries on
//   in runs of run_tiles, each sorted by cost    the larger first, else in that order
//
// A tile's place in its run is the number of the run's tiles before it, which each lane counts. A
// run's lanes are the workgroup's. With kSharesTiles the list is first made behind its place: a
// tile that heads do not share is there once, and as many times as there are heads when it is
// sorted.
#include "core/sequence.h"
#include "core/shared_heads.h"
#include "sequences/work_tile_moves.h"

namespace fulmen::kernels {

static_assert(kVariable && kWorkgroup == kMostRunTiles, "work_tiles: a lane a tile of a run");
constexpr int kSumsAt = 0, kCostsAt = 4 * kWorkgroup;
static_assert(kLdsBytes == 8 * kWorkgroup, "work_tiles: the host reserves LDS for sums and costs");

// Where the list is made.
FULMEN_DEVICE WorkTile* made_at(const ForwardArguments& call) {
  return call.work.tiles + (kSharesTiles ? call.work.capacity : 0);
}

// Each lane's sum of the lanes' numbers before it; `sum`: of all.
FULMEN_DEVICE int sum_before(int number, int& sum) {
  const int lane = thread_id();
  int before = 0;
  lds_store(kSumsAt + 4 * lane, number);
  barrier();
#pragma unroll 1
  for (int step = 1; step < kWorkgroup; step *= 2) {
    if (lane >= step) before += lds_load<int>(kSumsAt + 4 * (lane - step));
    barrier();
    lds_store(kSumsAt + 4 * lane, number + before);
    barrier();
  }
  sum = lds_load<int>(kSumsAt + 4 * (kWorkgroup - 1));
  barrier();
  return before;
}

// Tiles of keys that the tile's queries attend.
FULMEN_DEVICE int cost_of(const ForwardArguments& call, const PlacedSequence& s, int tile,
                          bool shared) {
  const TileQueries queries = TileQueries::of(call, s.q_len, tile, shared);
  const algorithm::KeyRange keys = s.band(call.top_left != 0, call.window_left, call.window_right)
                                       .any(queries.begin, queries.end);
  return keys.end > keys.begin ? static_cast<int>(tiles_of(keys.end - keys.begin, kBlockN)) : 0;
}

// Writes the tiles of sequences [first, first + kWorkgroup), of which a lane's begin at `place`.
FULMEN_DEVICE void list_sequences(const ForwardArguments& call, int first, int place) {
  constexpr int kWaves = kWorkgroup / kWaveSize;
  const algorithm::SharedTiles sharing = shared_tiles(call);
  lds_store(kSumsAt + 4 * thread_id(), place);
  barrier();
  for (int n = wave_id(); n < kWorkgroup && first + n < call.batch; n += kWaves) {
    const PlacedSequence s = PlacedSequence::of(call, first + n);
    const bool shared = sharing.is_shared(s.q_len);
    const int marks = (s.cut ? WorkTile::kCut : 0) + (shared ? WorkTile::kShared : 0);
    const int count = sharing.count(s.q_len), begin = lds_load<int>(kSumsAt + 4 * n);
    for (int tile = lane_id(); tile < count && begin + tile < call.work.capacity;
         tile += kWaveSize) {
      const auto row = [](Int64 x) { return static_cast<int>(x); };
      const int first_copy = tile * sharing.copies(s.q_len);
      store_work_tile(made_at(call) + begin + tile,
                      {first + n, first_copy, row(s.q_row), row(s.q_len), row(s.k_row),
                       row(s.k_len), marks, cost_of(call, s, first_copy, shared)});
    }
  }
  barrier();
}

// Sorts a run's `count` tiles behind the `listed` ones before, and returns how many these are then,
// with copies.
FULMEN_DEVICE int sort_run(const ForwardArguments& call, const WorkTile* run, int count,
                           int listed) {
  constexpr int kAtOnce = 4;
  const int heads = shared_heads(call);
  const int lane = thread_id();
  const WorkTile own = lane < count ? load_work_tile(run + lane) : WorkTile{};
  const int copies = shared_tiles(call).copies(own.q_len);
  // A tile that heads share is done sooner than others with as many keys. What is not there counts
  // as less than all.
  const int own_cost = 2 * own.cost + (copies > 1 ? 1 : 0);
  lds_store(kCostsAt + 4 * lane, lane < count ? own_cost : -1);
  barrier();
  int before = 0, all = 0;
  if (wave_id() * kWaveSize < count) {
#pragma unroll 4
    for (int n = 0; n < count; n += kAtOnce) {
      const auto costs = lds_load<Words<kAtOnce>>(kCostsAt + 4 * n);
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
        const int cost = static_cast<int>(costs.word[m]);
        const int its_copies = cost < 0 ? 0 : kSharesTiles && cost % 2 != 0 ? heads : 1;
        before += cost > own_cost || (cost == own_cost && n + m < lane) ? its_copies : 0;
        all += its_copies;
      }
    }
  }
  if (lane == 0) lds_store(kSumsAt, all);
  barrier();
  if (lane < count) {
#pragma unroll 1
    for (int n = 0; n < copies && listed + before + n < call.work.capacity; ++n) {
      WorkTile copy = own;
      copy.tile += n;
      store_work_tile(call.work.tiles + listed + before + n, copy);
    }
  }
  return at_most(listed + lds_load<int>(kSumsAt), call.work.capacity);
}

FULMEN_DEVICE void work_tiles(const ForwardArguments& call) {
  int all = 0;
#pragma unroll 1
  for (int first = 0; first < call.batch; first += kWorkgroup) {
    const int b = first + thread_id();
    const int count =
        b < call.batch ? shared_tiles(call).count(PlacedSequence::of(call, b).q_len) : 0;
    int sum = 0;
    const int before = sum_before(count, sum);
    list_sequences(call, first, all + before);
    // Tables that name rows twice are cut off at what there is room for.
    all = sum < call.work.capacity - all ? all + sum : call.work.capacity;
  }
  const int run = call.work.run_tiles / shared_heads(call);
  int listed = 0;
#pragma unroll 1
  for (int first = 0; first < all; first += run)
    listed = sort_run(call, made_at(call) + first, at_most(all - first, run), listed);
  if (thread_id() == 0) {
    global_store(call.work.count, listed);
    global_store(call.tile_counter, 0);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::work_tiles)
