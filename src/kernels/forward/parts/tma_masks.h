// The keep-mask in prefill_tma.h (kMaskBits): only key tiles that some row attends are loaded and
// multiplied, and values that no row attends become 0.
#pragma once

#include "forward/parts/cleared_rows.h"
#include "forward/parts/query_tiles.h"
#include "tile/nvidia/warpgroup_rows.h"

namespace fulmen::kernels {

// What `rows` queries from row_begin on attend.
FULMEN_DEVICE MaskedRows masked_rows(const ForwardArguments& a, const QueryTile& t, Int64 row_begin,
                                     int rows) {
  const Int64 end = row_begin + rows < a.seqlen_q ? row_begin + rows : a.seqlen_q;
  return MaskedRows::of(a, t.batch, t.head, row_begin, end);
}

// The blocks of a work tile's rows whose bits are kept apart: a warpgroup's rows are one.
constexpr int kRowBlocks = kBlockM / kMaskRows;
static_assert(!kMaskBits || kMaskRows == 64, "prefill_tma: a block of rows is a warpgroup's");

// Visits a tile's bits in each row block, of which `bits` has the first one's. Rows of one mask are
// one block.
template <class Visit>
FULMEN_DEVICE void for_each_row_block(const MaskedRows& rows, const unsigned* bits, bool there,
                                      Int64 first_key, const Visit& visit) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b)
    visit(b, there && b < rows.blocks ? TileBits::of(bits + b * rows.words, first_key)
                                      : TileBits::none());
}
// The keys of a tile that some row attends.
FULMEN_DEVICE TileBits attended_keys(const MaskedRows& rows, bool there, Int64 first_key) {
  TileBits keys = TileBits::none();
  for_each_row_block(rows, rows.any, there, first_key,
                     [&](int, const TileBits& own) { keys |= own; });
  return keys;
}

// The tiles that some row of the work tile attends. A look is at all of its row blocks at once.
class WorkTiles : public LookedAtTiles<MaskedFirst> {
 public:
  FULMEN_DEVICE WorkTiles(const ForwardArguments& a, const QueryTile& t)
      : LookedAtTiles(masked_rows(a, t, t.row_begin, kBlockM), t.order) {}
};

// As the loader sees them.
class LoadedTiles : WorkTiles {
 public:
  using WorkTiles::WorkTiles;
  FULMEN_DEVICE int next(int n) {
    return LookedAtTiles::next(n, [&](bool there, Int64 first_key) {
      const TileBits keys = attended_keys(rows_, there, first_key);
      kept_ = static_cast<unsigned>(ballot(!keys.is_empty()));
      full_ = static_cast<unsigned>(ballot(keys.is_full()));
    });
  }
  // Each key of tile n is attended by some query.
  FULMEN_DEVICE bool has_all_keys(int n) const { return has(full_, n); }

 private:
  unsigned full_ = 0;
};

// As a warpgroup sees them, which has rows of its own.
class GroupTiles : WorkTiles {
 public:
  // group: of the work tile's rows; -1: none, behind the last query.
  FULMEN_DEVICE GroupTiles(const ForwardArguments& a, const QueryTile& t, int group)
      : WorkTiles(a, t), group_(group >= 0 && rows_.blocks == 1 ? 0 : group) {}
  FULMEN_DEVICE int next(int n) {
    return LookedAtTiles::next(n, [&](bool there, Int64 first_key) {
      bool kept = false, own = false, whole = false;
      for_each_row_block(rows_, rows_.any, there, first_key, [&](int b, const TileBits& bits) {
        const bool some = !bits.is_empty();
        kept = kept || some;
        own = b == group_ ? some : own;
      });
      for_each_row_block(rows_, rows_.all, there, first_key, [&](int b, const TileBits& bits) {
        whole = b == group_ ? bits.is_full() : whole;
      });
      kept_ = static_cast<unsigned>(ballot(kept));
      own_ = static_cast<unsigned>(ballot(own));
      whole_ = static_cast<unsigned>(ballot(whole));
    });
  }
  // The warpgroup attends some key of tile n.
  FULMEN_DEVICE bool is_own(int n) const { return has(own_, n); }
  // The mask lets each of its queries attend all of them.
  FULMEN_DEVICE bool is_whole(int n) const { return has(whole_, n); }

 private:
  int group_;
  unsigned own_ = 0, whole_ = 0;
};

// Visits the tiles that a loader brings of a work tile.
template <class Visit>
FULMEN_DEVICE void for_each_kept_tile(const ForwardArguments& a, const QueryTile& t,
                                      const Visit& visit) {
  LoadedTiles tiles(a, t);
#pragma unroll 1
  for (int n = tiles.next(0); n < t.order.count; n = tiles.next(n + 1))
    visit(t.order.first_key(n), {}, !tiles.has_all_keys(n));
}

// The tiles that some of the workgroup's rows attend. Returns whether the warpgroup's own do.
// group: GroupTiles'.
template <class Consumer>
FULMEN_DEVICE bool step_kept_tiles(Consumer& consumer, const QueryTile& t, const RowMap& map,
                                   Int64 wave_row, int group, WaveRows& rows) {
  GroupTiles tiles(consumer.arguments, t, group);
  int n = tiles.next(0);
#pragma unroll 1
  for (; n < t.order.count && !tiles.is_own(n); n = tiles.next(n + 1)) consumer.pass_over();
  if (n == t.order.count) return false;
  consumer.template first<true>(map, wave_row, rows, t.order.first_key(n));
#pragma unroll 1
  for (n = tiles.next(n + 1); n < t.order.count; n = tiles.next(n + 1)) {
    // Once products are in flight a tile that the warpgroup does not attend takes its step as well.
    if (n >= t.order.masked && tiles.is_whole(n)) {
      consumer.template step<false>(map, wave_row, rows, t.order.first_key(n));
    } else {
      consumer.template step<true>(map, wave_row, rows, t.order.first_key(n));
    }
  }
  return true;
}

// The values of a tile that no row of the work tile attends.
struct HiddenValues {
  TileBits attended;  // kMaskBits: the keys that some row does
  int begin, end;     // else those that are not outside t.keys

  // some: kMaskBits, there are such values.
  FULMEN_DEVICE static HiddenValues of(const ForwardArguments& a, const QueryTile& t,
                                       Int64 first_key, bool some) {
    HiddenValues hidden = {TileBits::none(), 0, kBlockN};
    if (kMaskBits && some)
      hidden.attended = attended_keys(masked_rows(a, t, t.row_begin, kBlockM), true, first_key);
    if constexpr (!kMaskBits) {
      hidden.begin = at_most(t.keys.begin - first_key, kBlockN);
      hidden.end = at_most(t.keys.end - first_key, kBlockN);
    }
    return hidden;
  }
  // Makes them 0.
  template <int kPanelCount>
  FULMEN_DEVICE void clear(int tile_at) const {
    if constexpr (kMaskBits) {
      clear_rows<0, kPanelCount>(tile_at, attended);
    } else {
      clear_rows<0, kPanelCount>(tile_at, 0, begin);
      clear_rows<0, kPanelCount>(tile_at, end, kBlockN);
    }
  }
};

}  // namespace fulmen::kernels
