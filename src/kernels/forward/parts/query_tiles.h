// Which tiles of queries a workgroup of prefill_tma.h takes, one after the other, and the order of
// a tile's keys.
#pragma once

#include "core/shared_heads.h"
#include "forward/parts/sequence_tiles.h"
#include "tile/order.h"
#include "tile/sources.h"

namespace fulmen::kernels {

// The order of a workgroup's tiles of keys: those at the band's end, which need masks, last one
// first; those at its beginning; then those that need none. A warpgroup whose band ends before them
// skips the first ones.
struct MaskedFirst {
  Int64 begin;  // the first key of the first tile
  int count, masked;
  int late;  // of the masked ones those at the end
  int whole_begin;

  FULMEN_DEVICE static MaskedFirst of(const algorithm::KeyRange& keys,
                                      const algorithm::KeyRange& whole) {
    const TileOrder order = TileOrder::of(keys, whole);
    return {order.begin, order.count, order.masked, order.count - order.whole_end,
            order.whole_begin};
  }
  FULMEN_DEVICE Int64 first_key(int n) const {
    const int tile = n >= masked ? n - masked + whole_begin : n < late ? count - 1 - n : n - late;
    return begin + static_cast<Int64>(tile) * kBlockN;
  }
  // How many of the first tiles begin at `end` or later.
  FULMEN_DEVICE int passed_over(Int64 end) const {
    const int needed = end > begin ? at_most((end - begin + kBlockN - 1) / kBlockN, count) : 0;
    return count - needed < late ? count - needed : late;
  }
};

// A workgroup's tile of queries, and the keys that it goes over.
constexpr int kWholeTile = -1;
struct BoxPlace {
  Int64 row;
  int batch;
};
struct QueryTile {
  int batch, head;  // the first one, where heads share the tile
  Int64 row_begin;
  int split;                 // kSplits: which part of the keys; kWholeTile: all
  algorithm::KeyRange keys;  // that some row attends
  MaskedFirst order;
  WorkTile work;  // kVariable: where the sequence lies

  FULMEN_DEVICE static QueryTile of(const ForwardArguments& a, const QueryBlock& block, int split) {
    return of(a, block,
              block.row_begin + kBlockM < a.seqlen_q ? block.row_begin + kBlockM : a.seqlen_q,
              split);
  }
  FULMEN_DEVICE static QueryTile of(const ForwardArguments& a, const QueryBlock& block,
                                    Int64 row_end, int split) {
    const algorithm::Band band = band_of(a);
    algorithm::KeyRange keys = band.any(block.row_begin, row_end),
                        whole = band.all(block.row_begin, row_end);
    if (kSplits && split != kWholeTile) {
      keys.begin = split * a.split_keys;
      if (keys.begin + a.split_keys < keys.end) keys.end = keys.begin + a.split_keys;
      whole = keys;
      whole.end = keys.begin + (keys.end - keys.begin) / kBlockN * kBlockN;
    }
    const MaskedFirst order = MaskedFirst::of(tile_range(keys), whole);
    return {block.batch, block.head, block.row_begin, split, keys, order, {}};
  }
  FULMEN_DEVICE static QueryTile of(const ForwardArguments& call, const HeadTile& next) {
    const WorkTile& work = next.tile;
    const auto queries = TileQueries::of(call, work.q_len, work.tile, shares_tile(work));
    QueryTile t = of(arguments_at(call, work.batch, PlacedSequence::of(work)),
                     {work.batch, next.head * shared_heads(call) + queries.head, queries.begin},
                     queries.end, kWholeTile);
    t.work = work;
    if (t.is_shared()) t.row_begin *= shared_heads(call);
    return t;
  }
  // Rows are those of heads that share the tile.
  FULMEN_DEVICE bool is_shared() const { return shares_tile(work); }
  FULMEN_DEVICE int rows_of_group(const ForwardArguments& a) const { return group_rows(a, work); }
  // No other tile has these keys.
  FULMEN_DEVICE bool is_alone(const ForwardArguments& a) const { return has_sequence(a, work); }
  // The arguments that the sequence would have if it were alone.
  FULMEN_DEVICE decltype(auto) sequence(const ForwardArguments& call) const {
    if constexpr (!kVariable) {
      return (call);
    } else {
      return arguments_at(call, batch, PlacedSequence::of(work));
    }
  }
  // Where the sequence's row 0 is in q's and k's tensor maps. Packed tensors are one batch.
  FULMEN_DEVICE BoxPlace queries_in_map(const ForwardArguments& call) const {
    if constexpr (!kVariable) return {0, batch};
    return {work.q_row, call.sequences.cu_seqlens_q != nullptr ? 0 : batch};
  }
  FULMEN_DEVICE BoxPlace keys_in_map(const ForwardArguments& call) const {
    if constexpr (!kVariable) return {0, batch};
    return {work.k_row, call.sequences.cu_seqlens_k != nullptr ? 0 : batch};
  }
};

// The tile scheduler: which tiles of queries a workgroup computes. The order of all tiles, with a
// band, is longest-processing-time-first within an L2 section: section_heads heads, whose keys and
// values fit in the L2.
//   single tile          the one of the workgroup's number
//   static persistent    a grid stride over tiles; with a band over pairs of equal work: tile n of
//                        a head, and tile n from the end of the next one (of the same, where the
//                        number of heads is odd)
//   dynamic persistent   (kDynamicTiles) the tile of its number, then those that the atomic tile
//                        counter gives
// kSplits: each tile of the tail wave, from `whole_tiles` on, counts as num_splits tiles, each over
// a part of the keys.
class QueryTiles {
 public:
  FULMEN_DEVICE explicit QueryTiles(const ForwardArguments& a) : arguments_(a) {
    place(static_cast<unsigned>(workgroup_id()));
  }
  FULMEN_DEVICE bool there() const { return batch_ < arguments_.batch; }
  FULMEN_DEVICE int split() const { return kSplits ? split_ : kWholeTile; }
  FULMEN_DEVICE QueryBlock block() const {
    if constexpr (kPairs) {
      const int tile = second_ ? tile_ : arguments_.row_tiles - 1 - tile_;
      return {batch_, pairs_heads() ? 2 * head_ + (second_ ? 1 : 0) : head_, Int64{tile} * kBlockM};
    } else {
      return {batch_, head_, Int64{tile_} * kBlockM};
    }
  }
  // The nth of all.
  FULMEN_DEVICE void place(unsigned nth) {
    const auto row_tiles = static_cast<unsigned>(arguments_.row_tiles),
               num_heads = static_cast<unsigned>(arguments_.num_heads);
    if constexpr (kSplits) {
      const auto whole = static_cast<unsigned>(arguments_.whole_tiles),
                 splits = static_cast<unsigned>(arguments_.num_splits);
      nth_ = nth;
      split_ = nth < whole ? kWholeTile : static_cast<int>((nth - whole) % splits);
      if (nth >= whole) nth = whole + (nth - whole) / splits;
    }
    if constexpr (kBand && !kPairs) {
      const unsigned section = arguments_.section_heads, all = arguments_.batch * num_heads;
      if (kDynamicTiles && nth >= all * row_tiles) {
        batch_ = arguments_.batch;
        return;
      }
      const unsigned before = nth / (section * row_tiles) * section,
                     rest = nth - before * row_tiles;
      const unsigned heads = before + section < all ? section : all - before;
      tile_ = static_cast<int>(row_tiles - 1 - rest / heads);
      set_head(before + rest % heads, num_heads);
    } else {
      tile_ = static_cast<int>(nth % tiles());
      set_head(nth / tiles(), heads());
    }
  }
  // To the static scheduler's next tile: adds the stride to the mixed-radix index (tile, head,
  // batch).
  FULMEN_DEVICE void advance() {
    if constexpr (kSplits) {
      place(nth_ + static_cast<unsigned>(arguments_.step_tile));
      return;
    }
    if constexpr (kPairs) {
      second_ = !second_ && (pairs_heads() || 2 * tile_ + 1 != arguments_.row_tiles);
      if (second_) return;
    }
    tile_ += arguments_.step_tile;
    head_ += arguments_.step_head + carried(tile_, tiles());
    batch_ += arguments_.step_batch + carried(head_, heads());
  }

 private:
  static constexpr bool kPairs = kBand && kPersistent && !kDynamicTiles;
  FULMEN_DEVICE bool pairs_heads() const { return arguments_.num_heads % 2 == 0; }
  FULMEN_DEVICE int tiles() const {
    return kPairs && !pairs_heads() ? (arguments_.row_tiles + 1) / 2 : arguments_.row_tiles;
  }
  FULMEN_DEVICE int heads() const {
    return kPairs && pairs_heads() ? arguments_.num_heads / 2 : arguments_.num_heads;
  }
  FULMEN_DEVICE void set_head(unsigned of_all, unsigned heads) {
    batch_ = static_cast<int>(of_all / heads);
    head_ = static_cast<int>(of_all % heads);
  }

  const ForwardArguments& arguments_;
  int batch_, head_, tile_;
  bool second_ = false;
  unsigned nth_ = 0;  // kSplits
  int split_ = kWholeTile;
};

}  // namespace fulmen::kernels
