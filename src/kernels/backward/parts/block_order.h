// Which blocks of keys the persistent workgroups of backward_tma.h, and pairs of them of
// backward_tma_wide.h, take, over which tiles of queries each goes, and in what order blocks add to
// dQ.
#pragma once

#include "backward/parts/query_sums.h"
#include "backward/parts/sequence_blocks.h"
#include "backward/parts/uniform_blocks.h"

namespace fulmen::kernels {

// A block's tiles of queries. kTilesDown, under a causal mask: from the last one to the first.
// Blocks that run at once, whose first queries differ, then read the same ones. Those of narrow
// heads go up from there instead, so that none waits for another one's addition.
struct TileRange {
  int first_tile, count;       // of the sequence's tiles
  int whole_begin, whole_end;  // tiles that need no masks

  // The tiles of keys [first, last). band: of queries, for a key.
  FULMEN_DEVICE static TileRange of(const BackwardArguments& a, int /*batch*/, int /*kv_head*/,
                                    int first, int last, const algorithm::Band& band) {
    // Queries that attend some key of the block, and all of them. Keys beyond the end have no share
    // in dQ: all tiles are masked.
    const algorithm::KeyRange queries = band.any(first, last), whole = last - first < kBlockKeys
                                                                           ? algorithm::KeyRange{}
                                                                           : band.all(first, last);
    const auto begin = static_cast<int>(queries.begin / kBlockN),
               end = static_cast<int>((queries.end + kBlockN - 1) / kBlockN);
    // Rows behind the last query are 0, those of q, dout and their statistics, and add nothing. A
    // bias has no such rows.
    const int behind = kVariable && kPlainScale && whole.end == a.seqlen_q ? kBlockN - 1 : 0;
    const auto whole_begin = static_cast<int>((whole.begin + kBlockN - 1) / kBlockN),
               whole_end = static_cast<int>((whole.end + behind) / kBlockN);
    const int count = queries.end > queries.begin ? end - begin : 0;
    return {kTilesDown ? end - 1 : begin, count, whole_begin, whole_end};
  }
  struct Entry {
    int number;
    FULMEN_DEVICE int tile() const { return number; }
  };
  FULMEN_DEVICE Entry nth(int n) const { return {kTilesDown ? first_tile - n : first_tile + n}; }
  FULMEN_DEVICE Entry ahead(int n) const { return nth(n); }
  FULMEN_DEVICE static Entry arrived(const Entry& entry) { return entry; }
  template <int kCount>
  FULMEN_DEVICE static Words<kCount> attended(int /*word*/) {
    return {};  // only lists know
  }
  FULMEN_DEVICE bool is_masked(const Entry& entry) const {
    return entry.number < whole_begin || entry.number >= whole_end;
  }
};

// Whether a block's first tiles are computed with masks, as any of them may need some. Listed ones
// all need more than their bits, or none does: a band, or addresses that end with the tensors.
constexpr bool kFirstMasked = !kTileLists || kBand || !kPlainScale;
// Whether a wave that multiplies asks for a list's next tile a step before it.
constexpr bool kTilesAhead = kTileLists && !kTileByTile;

// Under a mask as bits, those of a list in memory (kTileLists).
struct ListedTiles {
  const unsigned* lists;
  unsigned at;  // of the list
  int count;

  FULMEN_DEVICE static ListedTiles of(const BackwardArguments& a, int batch, int kv_head, int first,
                                      int /*last*/, const algorithm::Band& /*band*/) {
    const unsigned* const lists = a.mask_bits.lists;
    const unsigned at = mask_tile_list(a, batch, kv_head, first / kBlockKeys);
    return {lists, at, broadcast(static_cast<int>(global_load(lists + at)))};
  }
  using Entry = MaskTile;
  FULMEN_DEVICE Entry nth(int n) const { return arrived(ahead(n)); }
  // In flight until arrived() waits for it.
  FULMEN_DEVICE Entry ahead(int n) const {
    const unsigned from = at + MaskTiles::kHeadWords + static_cast<unsigned>(n);
    return {n < count ? global_load(lists + from) : 0U};
  }
  // Which of the block's keys [32 * word, 32 * word + 32 * kCount) some query attends.
  template <int kCount>
  FULMEN_DEVICE Words<kCount> attended(int word) const {
    const unsigned from = at + MaskTiles::kKeysAt + static_cast<unsigned>(word);
    return global_load(reinterpret_cast<const Words<kCount>*>(lists + from));
  }
  FULMEN_DEVICE static Entry arrived(const Entry& entry) {
    return {static_cast<unsigned>(broadcast(static_cast<int>(entry.word)))};
  }
  // Where a wide head's tile had one code, ptxas would keep the loop's numbers in vector registers:
  // 639 vector instructions a tile beside 175. The second one, right for any tile, serves blocks
  // behind 2^15 others.
  FULMEN_DEVICE static bool is_masked(const Entry& entry) {
    return kFirstMasked || (kDimGroups > 1 && entry.before() >= MaskTile::kMost / 2);
  }
};
static_assert(!kTileLists || (kBlockKeys == kMaskTileKeys && kBlockN == kMaskRows),
              "backward_tma: lists are of these blocks and tiles");
using QueryOrder = Either<kTileLists, ListedTiles, TileRange>;

using Block = Either<kVariable, SequenceBlock, UniformBlock>;
// A query's number in its sequence. Where a sequence's length is no argument but takes registers,
// the loader has few.
using QueryRow = Either<kVariable, int, Int64>;

// A block of keys, the query heads that share them, and their tiles.
struct Work {
  const BackwardArguments& call;
  const BackwardArguments& arguments;  // the sequence's, as if it were alone
  Block block;
  int batch, kv_head, row_begin, row_end;
  algorithm::Band band;  // of queries, for a key
  QueryOrder order;

  // a: block.sequence_in(call).
  FULMEN_DEVICE static Work of(const BackwardArguments& call, const BackwardArguments& a,
                               const Block& block) {
    const int begin = static_cast<int>(block.tile) * kBlockKeys,
              end = begin + at_most(a.seqlen_k - begin, kBlockKeys);
    const algorithm::Band band = column_band(a);
    const int batch = block.batch(call), kv_head = block.kv_head(call);
    return {call,  a,       block,
            batch, kv_head, begin,
            end,   band,    QueryOrder::of(a, batch, kv_head, begin, end, band)};
  }
  FULMEN_DEVICE int first_head() const { return kv_head * arguments.group_size; }
  // Visits the tiles of all query heads in order, as QueryOrder::nth gives them. Heads that share
  // keys have queries, dout and dQ that the L2 does not hold for all blocks that run at once:
  // kTileByTile. Where heads come one after the other, compilers compute what depends on a head
  // once.
  template <class Visit>
  FULMEN_DEVICE void for_each_tile(const Visit& visit) const {
    const int first = first_head();
    if constexpr (kTileByTile) {
#pragma unroll 1
      for (int n = 0; n < order.count; ++n) {
#pragma unroll 1
        for (int head = first; head < first + arguments.group_size; ++head)
          visit(head, order.nth(n));
      }
      return;
    }
#pragma unroll 1
    for (int head = first; head < first + arguments.group_size; ++head) {
      if constexpr (kTilesAhead) {
        auto ahead = order.ahead(0);  // in flight while the tile before is visited
#pragma unroll 1
        for (int n = 0; n < order.count; ++n) {
          const auto entry = order.arrived(ahead);
          ahead = order.ahead(n + 1);
          visit(head, entry);
        }
      } else {
#pragma unroll 1
        for (int n = 0; n < order.count; ++n) visit(head, order.nth(n));
      }
    }
  }
};

// The block's place in the order of additions to each tile of dQ: after the blocks of its head that
// were taken before it.
class AddOrder {
 public:
  FULMEN_DEVICE explicit AddOrder(const Work& work)
      : work_(work),
        first_blocks_(kTileLists ? 0
                                 : work.block.first_blocks(work.call, work.batch, work.kv_head)) {}
  // How many blocks are added to the tile before this one.
  FULMEN_DEVICE static int before(const MaskTile& entry) { return entry.before(); }
  FULMEN_DEVICE int before(const TileRange::Entry& entry) const {
    const int block = work_.row_begin / kBlockKeys;
    return block < first_blocks_ ? at_most(last_block(entry.tile()), first_blocks_ - 1) - block
                                 : block;
  }
  // The counters of a tile's kParts parts: of the blocks that have been added.
  template <int kParts>
  FULMEN_DEVICE int* counters(int head, int tile) const {
    const BackwardArguments& call = work_.call;
    return reinterpret_cast<int*>(call.query_sums + call.query_sum_floats) - call.query_counters +
           Int64{work_.block.query_tile(call, work_.batch, head, tile)} * kParts;
  }

 private:
  // The block of the last keys of those that are added to a tile.
  FULMEN_DEVICE int last_block(int tile) const {
    const BackwardArguments& a = work_.arguments;
    const Int64 last_query =
        (Int64{tile} + 1) * kBlockN < a.seqlen_q ? (Int64{tile} + 1) * kBlockN - 1 : a.seqlen_q - 1;
    return static_cast<int>(((kBand ? band_of(a).last_plus_one(last_query) : a.seqlen_k) - 1) /
                            kBlockKeys);
  }

  const Work& work_;
  int first_blocks_;
};

}  // namespace fulmen::kernels
