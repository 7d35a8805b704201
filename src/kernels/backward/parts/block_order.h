// Which blocks of keys the persistent workgroups of backward_tma.h, and pairs of them of
// backward_tma_wide.h, take, over which tiles of queries each goes, and in what order blocks add to
// dQ.
#pragma once

#include "backward/parts/query_sums.h"
#include "backward/parts/tile.h"

namespace fulmen::kernels {

// A block's: of a workgroup, or of two that share it.
constexpr int kBlockKeys = kBlockM * kDimGroups;

// A block's tiles of queries.
struct QueryOrder {
  int first_tile, count;       // of the sequence's tiles
  int whole_begin, whole_end;  // tiles that need no masks

  FULMEN_DEVICE static QueryOrder of(const algorithm::KeyRange& queries,
                                     const algorithm::KeyRange& whole) {
    const auto begin = static_cast<int>(queries.begin / kBlockN),
               end = static_cast<int>((queries.end + kBlockN - 1) / kBlockN);
    const auto whole_begin = static_cast<int>((whole.begin + kBlockN - 1) / kBlockN),
               whole_end = static_cast<int>(whole.end / kBlockN);
    return {begin, queries.end > queries.begin ? end - begin : 0, whole_begin, whole_end};
  }
  FULMEN_DEVICE int tile(int n) const { return first_tile + n; }
  FULMEN_DEVICE bool is_masked(int tile) const { return tile < whole_begin || tile >= whole_end; }
};

// Which block of keys: a KV head of all batches, and its tile of keys.
struct BlockId {
  unsigned head, tile;

  // The nth block in the order of the tile counter: all but the last heads whole, section_heads of
  // them interleaved, each from its last keys to its first. Then the first_blocks of the last
  // heads, which under a causal mask have the most work; middle_heads whole heads, so that what
  // follows need not wait for these blocks; and the last heads' other blocks, from more work to
  // less, which shortens the tail wave. A block adds to a tile of dQ after those of its head with
  // smaller n (AddOrder::before): it waits for none that is taken later.
  FULMEN_DEVICE static BlockId nth(const BackwardArguments& a, unsigned id) {
    const auto tiles = static_cast<unsigned>(tiles_of(a.seqlen_k, kBlockKeys)),
               heads = all_heads(a);
    if (id >= tiles * heads) return {heads, 0};
    const auto last = static_cast<unsigned>(a.last_heads),
               middle = static_cast<unsigned>(a.middle_heads),
               first_tiles = static_cast<unsigned>(a.first_blocks);
    const unsigned last_begin = heads - last, middle_begin = last_begin - middle;
    if (id < middle_begin * tiles) return of_whole_heads(a, 0, middle_begin, tiles, id);
    id -= middle_begin * tiles;
    if (id < last * first_tiles) return {last_begin + id % last, first_tiles - 1 - id / last};
    id -= last * first_tiles;
    if (id < middle * tiles) return of_whole_heads(a, middle_begin, last_begin, tiles, id);
    id -= middle * tiles;
    return {last_begin + id % last, first_tiles + id / last};
  }
  FULMEN_DEVICE bool exists(const BackwardArguments& a) const { return head < all_heads(a); }

 private:
  FULMEN_DEVICE static BlockId of_whole_heads(const BackwardArguments& a, unsigned begin,
                                              unsigned end, unsigned tiles, unsigned id) {
    const auto most = static_cast<unsigned>(a.section_heads);
    const unsigned section = id / (tiles * most), rest = id % (tiles * most);
    begin += section * most;
    const unsigned section_heads = end - begin < most ? end - begin : most;
    return {begin + rest % section_heads, tiles - 1 - rest / section_heads};
  }
  FULMEN_DEVICE static unsigned all_heads(const BackwardArguments& a) {
    return static_cast<unsigned>(a.batch) * static_cast<unsigned>(a.num_kv_heads);
  }
};

// A block of keys, the query heads that share them, and their tiles.
struct Work {
  const BackwardArguments& arguments;
  int batch, kv_head, row_begin, row_end;
  algorithm::Band band;  // of queries, for a key
  QueryOrder order;

  FULMEN_DEVICE static Work of(const BackwardArguments& a, const BlockId& id) {
    const auto kv_heads = static_cast<unsigned>(a.num_kv_heads);
    const auto batch = static_cast<int>(id.head / kv_heads),
               kv_head = static_cast<int>(id.head % kv_heads);
    const int begin = static_cast<int>(id.tile) * kBlockKeys,
              end = begin + at_most(a.seqlen_k - begin, kBlockKeys);
    const algorithm::Band band = column_band(a);
    // Keys beyond the end have no share in dQ: all tiles are masked.
    const bool partial = end - begin < kBlockKeys;
    return {a,
            batch,
            kv_head,
            begin,
            end,
            band,
            QueryOrder::of(band.any(begin, end),
                           partial ? algorithm::KeyRange{} : band.all(begin, end))};
  }
  FULMEN_DEVICE int first_head() const { return kv_head * arguments.group_size; }
  // Visits the tiles of all query heads in order.
  template <class Visit>
  FULMEN_DEVICE void for_each_tile(const Visit& visit) const {
    const int first = first_head();
#pragma unroll 1
    for (int head = first; head < first + arguments.group_size; ++head) {
#pragma unroll 1
      for (int n = 0; n < order.count; ++n) visit(head, order.tile(n));
    }
  }
};

// The block's place in the order of additions to each tile of dQ: after the blocks of its head that
// were taken before it.
class AddOrder {
 public:
  FULMEN_DEVICE explicit AddOrder(const Work& work) : work_(work) {
    const BackwardArguments& a = work.arguments;
    const int heads_left = (a.batch - work.batch) * a.num_kv_heads - work.kv_head;
    first_blocks_ = kBand && heads_left <= a.last_heads
                        ? a.first_blocks
                        : static_cast<int>(tiles_of(a.seqlen_k, kBlockKeys));
  }
  // How many blocks are added to the tile before this one.
  FULMEN_DEVICE int before(int tile) const {
    const int block = work_.row_begin / kBlockKeys;
    return block < first_blocks_ ? at_most(last_block(tile), first_blocks_ - 1) - block : block;
  }
  // The counters of a tile's kParts parts: of the blocks that have been added.
  template <int kParts>
  FULMEN_DEVICE int* counters(int head, int tile) const {
    const BackwardArguments& a = work_.arguments;
    const int nth =
        (work_.batch * a.num_heads + head) * static_cast<int>(tiles_of(a.seqlen_q, kBlockN)) + tile;
    return reinterpret_cast<int*>(a.query_sums + a.query_sum_floats) - a.query_counters +
           Int64{nth} * kParts;
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
  // Blocks of the head that are taken from the last to the first (BlockId::nth). The others follow
  // in the order of their keys: blocks of earlier keys add to each tile that one of these adds to.
  int first_blocks_;
};

}  // namespace fulmen::kernels
