// Sequences of one length: in what order backward_tma.h and backward_tma_wide.h take their blocks
// of keys. For others block_table.h says so.
#pragma once

#include "backward/parts/mask_tile_list.h"
#include "backward/parts/tile.h"

namespace fulmen::kernels {

// A block's: of a workgroup, or of two that share it.
constexpr int kBlockKeys = kBlockM * kDimGroups;

// Where a sequence's rows lie in a tensor map: its first row, and the batch.
struct TensorRows {
  int row, batch;
};

// Which block of keys: a KV head of all batches, and its tile of keys.
struct UniformBlock {
  static constexpr int kBytes = 16;  // in LDS: what a copy to the peer has at least
  unsigned head, tile;

  struct Finder {
    FULMEN_DEVICE explicit Finder(const BackwardArguments& /*a*/) {}
  };
  // The nth block in the order of the tile counter: all but the last heads whole, section_heads of
  // them interleaved, each from its last keys to its first. Then the first_blocks of the last
  // heads, which under a causal mask have the most work; middle_heads whole heads, so that what
  // follows need not wait for these blocks; and the last heads' other blocks, from more work to
  // less, which shortens the tail wave. A block adds to a tile of dQ after those of its head with
  // smaller n (AddOrder::before): it waits for none that is taken later.
  //
  // kTileLists: all heads whole, as mask_tiles.h says.
  FULMEN_DEVICE static UniformBlock nth(const BackwardArguments& a, const Finder& /*finder*/,
                                        int n) {
    auto id = static_cast<unsigned>(n);
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
  FULMEN_DEVICE int batch(const BackwardArguments& a) const {
    return static_cast<int>(head / static_cast<unsigned>(a.num_kv_heads));
  }
  FULMEN_DEVICE int kv_head(const BackwardArguments& a) const {
    return static_cast<int>(head % static_cast<unsigned>(a.num_kv_heads));
  }
  // The block's sequence as if it were alone.
  FULMEN_DEVICE static const BackwardArguments& sequence_in(const BackwardArguments& call) {
    return call;
  }
  // Blocks of the head that are taken from the last to the first. The others follow in the order of
  // their keys: blocks of earlier keys add to each tile that one of these adds to.
  FULMEN_DEVICE static int first_blocks(const BackwardArguments& a, int batch, int kv_head) {
    const int heads_left = (a.batch - batch) * a.num_kv_heads - kv_head;
    return kBand && heads_left <= a.last_heads ? a.first_blocks
                                               : static_cast<int>(tiles_of(a.seqlen_k, kBlockKeys));
  }
  // The number of a tile of queries among those of all heads.
  FULMEN_DEVICE static int query_tile(const BackwardArguments& a, int batch, int query_head,
                                      int nth) {
    return (batch * a.num_heads + query_head) * static_cast<int>(tiles_of(a.seqlen_q, kBlockN)) +
           nth;
  }
  // Where the sequence's tiles lie in the tensor maps.
  FULMEN_DEVICE static TensorRows query_rows(const BackwardArguments& /*a*/, int batch) {
    return {0, batch};
  }
  FULMEN_DEVICE static TensorRows key_rows(const BackwardArguments& /*a*/, int batch) {
    return {0, batch};
  }
  FULMEN_DEVICE static Int64 queries(const BackwardArguments& a) { return a.seqlen_q; }
  FULMEN_DEVICE void store(int at) const { lds_store(at, Words<4>{{head, tile}}); }
  FULMEN_DEVICE static UniformBlock load(int at) {
    const auto words = lds_load<Words<2>>(at);
    return {static_cast<unsigned>(broadcast(static_cast<int>(words.word[0]))),
            static_cast<unsigned>(broadcast(static_cast<int>(words.word[1])))};
  }

 private:
  FULMEN_DEVICE static UniformBlock of_whole_heads(const BackwardArguments& a, unsigned begin,
                                                   unsigned end, unsigned tiles, unsigned id) {
    const auto most = static_cast<unsigned>(a.section_heads);
    const unsigned section = id / (tiles * most), rest = id % (tiles * most);
    begin += section * most;
    const unsigned section_heads = end - begin < most ? end - begin : most;
    const unsigned head = begin + rest % section_heads, nth = rest / section_heads;
    if (kTileLists && takes_upwards(a, head)) return {head, nth};
    return {head, tiles - 1 - nth};
  }
  FULMEN_DEVICE static bool takes_upwards(const BackwardArguments& a, unsigned head) {
    const auto heads = static_cast<unsigned>(a.num_kv_heads);
    const unsigned list =
        mask_tile_list(a, static_cast<int>(head / heads), static_cast<int>(head % heads), 0);
    return global_load(a.mask_bits.lists + list + MaskTiles::kUpwardsAt) != 0;
  }
  FULMEN_DEVICE static unsigned all_heads(const BackwardArguments& a) {
    return static_cast<unsigned>(a.batch) * static_cast<unsigned>(a.num_kv_heads);
  }
};

}  // namespace fulmen::kernels
