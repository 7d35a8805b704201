// The static persistent loop of prefill.h (kPersistent, NVIDIA): work tiles one after the other,
// without a workgroup's start or end between them. While the last tile of keys is computed the next
// work tile's first keys, and its queries, are in flight.
#pragma once

#include "forward/parts/prefill_epilogue.h"
#include "forward/parts/prefill_rows.h"

namespace fulmen::kernels {

// The rows that a workgroup takes next, if there are any. A wave fetches its own queries.
struct LaterRows {
  const ForwardArguments& call;
  TileScheduler turn;

  FULMEN_DEVICE bool there() const { return turn.there(call); }
  FULMEN_DEVICE PrefillRows rows() const { return PrefillRows::of(call, turn.block()); }
  FULMEN_DEVICE void fetch_tile(int buffer) const {
    if (!there()) return;
    const PrefillRows later = rows();
    if (later.order.count == 0) return;
    const StageSource source = later.source(call);
    Stage(source).template fetch<true>(later.order.first_key(0), buffer);
  }
  FULMEN_DEVICE void fetch_queries() const {
    if (!there()) return;
    const PrefillRows later = rows();
    if (later.order.count == 0) return;
    wave_barrier();  // all its lanes have read theirs
    Stage::fetch_wave_queries<kScoreTile * kRowTiles>(later.queries(call), first_row_of_wave());
  }
};

// Tile n + 1 is fetched while tile n is computed, after the last one what the next rows begin with.
// Ends with the buffer that this is in flight to. The long loop has code for neither masks nor
// other rows.
FULMEN_DEVICE void go_over_tiles(const PrefillTask& task, const PrefillRows& mine, Stage& stage,
                                 WaveRows& rows, int& buffer, const LaterRows& later) {
  const TileOrder& order = mine.order;
  NoCopies none;
  for (int n = 0; n < order.count;) {
    for (; n < order.masked || n + 1 == order.count; ++n) {
      publish(stage, buffer);
      const int next = 1 - buffer;
      if (n + 1 < order.masked) {
        stage.template fetch<true>(order.first_key(n + 1), next);
      } else if (n + 1 < order.count) {
        stage.template fetch<false>(order.first_key(n + 1), next);
      } else {
        later.fetch_tile(next);
      }
      const auto queries_read = [&] {
        if (n + 1 == order.count) later.fetch_queries();
      };
      const int attended =
          kWideHeads ? task.attended_keys(mine.band, mine.row_end, order.first_key(n)) : kBlockN;
      if (attended > 0) {
        task.step<true>(rows, {order.first_key(n), buffer, attended}, none, queries_read);
      } else {
        queries_read();
      }
      buffer = next;
    }
    for (; n < order.count - 1; ++n) {
      publish(stage, buffer);
      const int next = 1 - buffer;
      // Always true, but without the question NVRTC reads operands less far ahead.
      const bool there = n + 1 < order.count;
      auto copies = stage.next_tile(order.first_key(there ? n + 1 : n), next, there);
      task.step<false>(rows, {order.first_key(n), buffer}, copies, [] {});
      stage.committed();
      buffer = next;
    }
  }
}

// Tiles of queries, one after the other: no workgroup starts or ends between them. While the last
// tile of keys is computed the next rows' first one is in flight, and, once Q has been read, their
// queries.
FULMEN_DEVICE void prefill_persistent(const ForwardArguments& call) {
  static_assert(!kPersistent || !(kVariable || kKeepMask || kDropout),
                "prefill: persistent workgroups serve one length");
  LaterRows later{call, TileScheduler::first(call)};
  int buffer = 0;
  bool in_flight = false;
  while (later.there()) {
    const PrefillRows mine = later.rows();
    const TileOrder& order = mine.order;
    if (!in_flight) {
      later.fetch_tile(buffer);
      later.fetch_queries();
    }
    in_flight = order.count > 0;  // its last tile fetches the next rows' first
    later.turn.go_on(call);
    const RowMap map{call, mine.block.batch, mine.block.head, call.seqlen_q};
    const StageSource source = mine.source(call);
    Stage stage(source);
    const int first_row = first_row_of_wave();
    const PrefillTask task{call, map, mine.block.row_begin + first_row, first_row};
    WaveRows rows = {};
    clear(rows);
    if (order.count > 0) {
      publish(stage, buffer);
      task.load_queries(mine.queries(call), rows);
    }
    go_over_tiles(task, mine, stage, rows, buffer, later);
    finish(task, rows);
  }
}

}  // namespace fulmen::kernels
