// The keep-mask in prefill_tma.h (kMaskBits): only key tiles that some row attends are loaded and
// multiplied, and values that no row attends become 0.
#pragma once

#include "forward/parts/query_tiles.h"
#include "tile/nvidia/warpgroup_rows.h"

namespace fulmen::kernels {

// What `rows` queries from row_begin on attend.
FULMEN_DEVICE MaskedRows masked_rows(const ForwardArguments& a, const QueryTile& t, Int64 row_begin,
                                     int rows) {
  const Int64 end = row_begin + rows < a.seqlen_q ? row_begin + rows : a.seqlen_q;
  return MaskedRows::of(a, t.batch, t.head, row_begin, end);
}

// Those tiles that some row attends.
template <class Loader>
FULMEN_DEVICE void load_kept_tiles(Loader& loader, const QueryTile& t, int kv_head) {
  KeptTiles tiles(masked_rows(loader.arguments, t, t.row_begin, kBlockM), t.order);
  int before = -1;
  bool before_is_full = true;
#pragma unroll 1
  for (int n = 0; n < t.order.count; ++n) {
    if (!tiles.is_kept(n)) continue;
    loader.keys(t, t.order.first_key(n), kv_head);
    if (before >= 0) loader.values(t, t.order.first_key(before), kv_head, {}, !before_is_full);
    before = n;
    before_is_full = tiles.has_all_keys(n);
  }
  if (before >= 0) loader.values(t, t.order.first_key(before), kv_head, {}, !before_is_full);
}

// The tiles that some of the workgroup's rows attend. Returns whether the warpgroup's own do.
template <class Consumer>
FULMEN_DEVICE bool step_kept_tiles(Consumer& consumer, const QueryTile& t, const RowMap& map,
                                   Int64 wave_row, Int64 group_row, WaveRows& rows) {
  KeptTiles all(masked_rows(consumer.arguments, t, t.row_begin, kBlockM), t.order),
      own(masked_rows(consumer.arguments, t, group_row, 64), t.order);
  int n = 0;
#pragma unroll 1
  for (; n < t.order.count && !own.is_kept(n); ++n) {
    if (all.is_kept(n)) consumer.pass_over();
  }
  if (n == t.order.count) return false;
  consumer.template first<true>(map, wave_row, rows, t.order.first_key(n));
#pragma unroll 1
  for (++n; n < t.order.count; ++n) {
    if (!all.is_kept(n)) continue;
    // Once products are in flight a tile that the warpgroup does not attend takes its step as well.
    if (n >= t.order.masked && own.is_whole(n)) {
      consumer.template step<false>(map, wave_row, rows, t.order.first_key(n));
    } else {
      consumer.template step<true>(map, wave_row, rows, t.order.first_key(n));
    }
  }
  return true;
}

// Clears a tile's rows [begin, end) in LDS, but for those that stay.
template <int kPanelCount, class Stays>
FULMEN_DEVICE void clear_unless(int tile_at, int begin, int end, const Stays& stays) {
  for (int row = begin + lane_id() / 8; row < end; row += kWaveSize / 8) {
    if (stays(row)) continue;
#pragma unroll
    for (int p = 0; p < kPanelCount; ++p) {
      lds_store(tile_at + (p * kBlockN + row) * kPanelRowBytes + lane_id() % 8 * 16, Words<4>{});
    }
  }
}

// Clears the values at `to` that no row of the work tile attends: they are not to be multiplied,
// not even with 0, as they may be NaN. before, after: keys of the tile that are outside t.keys.
template <int kPanelCount>
FULMEN_DEVICE void clear_hidden_values(const ForwardArguments& a, const QueryTile& t, int to,
                                       Int64 first_key, bool before, bool after) {
  if constexpr (kMaskBits) {
    const TileBits attended = masked_rows(a, t, t.row_begin, kBlockM).attended(first_key);
    clear_unless<kPanelCount>(to, 0, kBlockN, [&](int row) { return attended.has_column(row); });
  } else {
    const auto all = [](int) { return false; };
    if (before) clear_unless<kPanelCount>(to, 0, static_cast<int>(t.keys.begin - first_key), all);
    if (after)
      clear_unless<kPanelCount>(to, static_cast<int>(t.keys.end - first_key), kBlockN, all);
  }
}

}  // namespace fulmen::kernels
