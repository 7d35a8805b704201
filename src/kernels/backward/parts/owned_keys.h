// What the kernels share that own keys, go over queries and add dq up by atomics: which keys a
// workgroup has, in which order it takes queries, and gradients' way to memory.
#pragma once

#include "backward/parts/tile.h"
#include "tile/lane_quads.h"

namespace fulmen::kernels {

// The lane's number, and not what was computed from it before: addresses need not stay in registers
// from one use to the next.
FULMEN_DEVICE unsigned lane_again() { return static_cast<unsigned>(recompute(lane_id())); }

// A workgroup's kBlockM keys of a KV head.
struct KeyBlock {
  Int64 batch, kv_head, row_begin;

  // A head's tiles one after the other: they share its queries, and sums, in the cache. Under a
  // causal mask the first keys have most to do: they start first, of as many heads as a third of an
  // A100's or H100's cache holds.
  FULMEN_DEVICE static KeyBlock of(const BackwardArguments& call, Int64 id) {
    constexpr Int64 kCacheBytes = 16 << 20, kQueryBytes = 2 * (kHeadDim + kHeadDimV) + 4 * kHeadDim;
    const Int64 tiles = tiles_of(call.seqlen_k, kBlockM),
                all_heads = static_cast<Int64>(call.num_kv_heads) * call.batch;
    const Int64 fit = kBand ? kCacheBytes / (call.seqlen_q * call.group_size * kQueryBytes + 1) : 1;
    const Int64 together = algorithm::Band::clamp(fit, 1, all_heads);
    const Int64 first_head = id / (tiles * together) * together, rest = id % (tiles * together);
    const Int64 width = all_heads - first_head < together ? all_heads - first_head : together;
    const Int64 batch_head = first_head + rest % width;
    return {batch_head / call.num_kv_heads, batch_head % call.num_kv_heads, rest / width * kBlockM};
  }
};

// Tiles of queries begin with a tile of sums. Keys beyond the end have no share in dq: all tiles
// are masked.
FULMEN_DEVICE TileOrder order_of_queries(const BackwardArguments& a, const algorithm::Band& band,
                                         Int64 row_begin, Int64 row_end,
                                         const algorithm::KeyRange& attended) {
  constexpr int kFirst = kMaskBits ? kBlockN : 16;  // a tile's bits of the mask are whole words
  return TileOrder::of({attended.begin / kFirst * kFirst, attended.end},
                       row_begin + kBlockM > a.seqlen_k
                           ? algorithm::KeyRange{}
                           : whole_in_mask(band.all(row_begin, row_end), attended));
}

// Returns true if some query attends key j. A key that none attends may be NaN, and dq takes it
// times 0: it becomes 0 in LDS.
FULMEN_DEVICE bool key_is_attended(const BackwardArguments& a, Int64 batch, Int64 kv_head,
                                   const algorithm::Band& band, const algorithm::KeyRange& attended,
                                   Int64 j) {
  if (kBand && band.first(j) >= band.last_plus_one(j)) return false;
  bool kept = !kKeepMask;
  for (Int64 head = kv_head * a.group_size; !kept && head < (kv_head + 1) * a.group_size; ++head) {
    kept = any_row_attends(a, batch, head, attended.begin, attended.end, j);
  }
  return kept;
}

// A gradient of a wave's rows: kTiles x 16 dims, from tile first_tile on.
template <int kTiles>
FULMEN_DEVICE void store_rows(const BackwardTask& task, const View& view, Int64 head,
                              int first_tile, int dims, float factor,
                              const float (&sum)[kRowTiles][kTiles][kElements]) {
  if constexpr (kTiles % 2 != 0) {
    task.store(view, head, first_tile, dims, factor, sum);
  } else {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = task.wave_row + kScoreTile * t + tile_row(slot);
        auto* row = const_cast<Element*>(
            at<Element>(view, task.batch, i < task.row_end ? i : task.row_end - 1, head));
#pragma unroll
        for (int d = 0; d < kTiles; d += 2) {
          float run[kQuadRun];
          quad_run(sum[t][d], sum[t][d + 1], slot, factor, run);
          if (i < task.row_end)
            store_run(row, kScoreTile * (first_tile + d) + kQuadRun * (lane_id() % 4), dims, run);
        }
      }
    }
  }
}

}  // namespace fulmen::kernels
