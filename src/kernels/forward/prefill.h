// Forward for many queries: K and V stream through LDS, scores, probabilities and output stay in
// registers.
//
// A workgroup owns kBlockM query rows of one head, a wave kRowTiles x 16 of them:
//   for each tile of kBlockN keys:
//     S = Q K^T                       scores, one query row (or two) a lane
//     P = 2^(S - max)                 online softmax; the row's lanes exchange their maxima, sums
//                                     only at the end
//     O = rescale * O + P V           P goes from accumulators straight into the next product
// While a tile of keys is computed the next one is in flight. Where a workgroup has few of them the
// kernel is static persistent (kPersistent): the next work tile's first keys and queries are
// prefetched from the last step of this one on (kWholeRows). The step, the epilogue and the
// persistent loop are in forward/parts.
#include "forward/parts/prefill_ahead.h"
#include "forward/parts/prefill_epilogue.h"
#include "forward/parts/prefill_persistent.h"
#include "forward/parts/prefill_rows.h"

namespace fulmen::kernels {

// Q and the first key tile, in flight before anything is computed.
FULMEN_DEVICE void fetch_first(Stage& stage, const QuerySource& queries, const TileOrder& order) {
  stage.fetch_queries(queries);
  if (order.masked > 0) {
    stage.template fetch<true>(order.first_key(0), 0);
  } else {
    fetch_first_whole(stage, order.first_key(0));
  }
}

static_assert(!kValuesFollow || kFetchesEarly,
              "prefill: values that follow their keys in one place come through registers");

// Done when a wave has a tile's scores: kValuesFollow. fetch(): the next tile.
template <class Fetch>
FULMEN_DEVICE void let_values_follow(Stage& stage, const Fetch& fetch) {
  if constexpr (!kValuesFollow) return;
  schedule_fence();
  stage.publish_values();
  fetch();
  schedule_fence();
}

// Fetches a tile, with a look at each key where the keep-mask hides some of them.
FULMEN_DEVICE void fetch_kept(Stage& stage, KeptWalk<TileOrder>& tile, int buffer) {
  if (tile.has_all_keys()) {
    stage.template fetch<false>(tile.first_key(), buffer);
  } else {
    stage.template fetch<true>(tile.first_key(), buffer);
  }
}
// kKnowsTiles: the tiles that some of the workgroup's rows attend.
FULMEN_DEVICE void over_kept_tiles(const PrefillTask& task, const StageSource& source, Stage& stage,
                                   const QuerySource& queries, const TileOrder& order,
                                   WaveRows& rows) {
  KeptWalk tile(source.masked_rows(), order);
  if (!tile.there()) return;
  stage.fetch_queries(queries);
  fetch_kept(stage, tile, 0);
  if constexpr (kQueryMmaSteps > 0) {
    stage.publish_queries(queries);
    task.load_queries(queries, rows);
  }
  NoCopies none;
  int buffer = 0;
#pragma unroll 1
  while (tile.there()) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const Int64 first_key = tile.first_key();
    const bool whole = tile.is_whole();
    if constexpr (kValuesFollow) stage.template fetch_values<true>(first_key);
    tile.advance();
    const auto fetch = [&] {
      if (tile.there()) fetch_kept(stage, tile, next);
    };
    const auto queries_read = [&] { let_values_follow(stage, fetch); };
    if constexpr (kFetchesEarly && !kValuesFollow) fetch();
    if (whole) {
      task.step<false>(rows, {first_key, buffer}, none, queries_read);
    } else {
      task.step<true>(rows, {first_key, buffer}, none, queries_read);
    }
    if constexpr (!kFetchesEarly) {
      barrier();
      fetch();
    }
    buffer = next;
  }
}

// The main loop: a workgroup's rows.
FULMEN_DEVICE void prefill_rows(const ForwardArguments& call, const QueryBlock& block) {
  const ForwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_q) return;
  const PrefillRows mine = PrefillRows::of(a, block);
  const RowMap map{a, block.batch, block.head, a.seqlen_q};
  const StageSource source = mine.source(a);
  Stage stage(source);
  const int first_row = first_row_of_wave();
  const PrefillTask task{call, map, block.row_begin + first_row, first_row};

  WaveRows rows = {};
  clear(rows);
  rows.key_factor = key_factor(source);
  rows.codes.load(a, map, task.wave_row);
  const TileOrder& order = mine.order;
  const QuerySource queries = mine.queries(a);
  if constexpr (kKnowsTiles) {
    over_kept_tiles(task, source, stage, queries, order, rows);
    finish(task, rows);
    return;
  }
  if (order.count > 0) fetch_first(stage, queries, order);
  if (Stage::brings_queries(order.count)) {
    stage.publish_queries(queries);
    task.load_queries(queries, rows);
  }
  if constexpr (kReadsAhead) {
    over_tiles_ahead(task, stage, order, rows);
    finish(task, rows);
    return;
  }
  NoCopies none;
  int buffer = 0, n = 0;
  for (; n < order.masked; ++n) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    if constexpr (kValuesFollow) stage.template fetch_values<true>(order.first_key(n));
    const auto fetch = [&] {
      if (n + 1 < order.masked) {
        stage.template fetch<true>(order.first_key(n + 1), next);
      } else if (n + 1 < order.count) {
        stage.template fetch<false>(order.first_key(n + 1), next);
      }
    };
    const auto queries_read = [&] { let_values_follow(stage, fetch); };
    if constexpr (kFetchesEarly && !kValuesFollow) fetch();
    const int attended =
        kWideHeads ? task.attended_keys(mine.band, mine.row_end, order.first_key(n)) : kBlockN;
    if (attended > 0)
      task.step<true>(rows, {order.first_key(n), buffer, attended}, none, queries_read);
    if constexpr (!kFetchesEarly) {
      barrier();
      fetch();
    }
    buffer = next;
  }
  for (; n < order.count; ++n) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    if constexpr (kSpreadsCopies) {
      const bool there = n + 1 < order.count;
      auto copies = stage.next_tile(order.first_key(there ? n + 1 : n), next, there);
      task.step<false>(rows, {order.first_key(n), buffer}, copies, [] {});
      stage.committed();
    } else {
      if constexpr (kValuesFollow) stage.template fetch_values<false>(order.first_key(n));
      const auto fetch = [&] {
        if (n + 1 < order.count) stage.template fetch<false>(order.first_key(n + 1), next);
      };
      if constexpr (kFetchesEarly && !kValuesFollow) fetch();
      task.step<false>(rows, {order.first_key(n), buffer}, none,
                       [&] { let_values_follow(stage, fetch); });
      if constexpr (!kFetchesEarly) {
        barrier();
        fetch();
      }
    }
    buffer = next;
  }
  finish(task, rows);
}
FULMEN_DEVICE void prefill(const ForwardArguments& call) {
  if constexpr (kMaskBits) grid_dependency_wait();  // pack_mask.h may still run
  if constexpr (kPersistent && kWholeRows) return prefill_persistent(call);
  if constexpr (kPersistent) {
    for (TileScheduler turn = TileScheduler::first(call); turn.there(call); turn.go_on(call)) {
      prefill_rows(call, turn.block());
      barrier();  // LDS has been read
    }
    return;
  }
  prefill_rows(call, QueryBlock::of(call));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::prefill)
