// What a workgroup of decode_tma.h, decode_latent.h or decode_latent_waves.h has: kBlockM packed
// query rows, and a split of their keys.
#pragma once

#include "tile/modified_scores.h"

namespace fulmen::kernels {

// Rows of the KV heads that are read as one, and the split.
struct Place {
  int split, first_row, kv_heads, batch;

  FULMEN_DEVICE static Place of(const ForwardArguments& a) {
    const auto id = static_cast<unsigned>(workgroup_id()),
               splits = static_cast<unsigned>(a.num_splits), tile = id / splits;
    const auto row_tiles = static_cast<unsigned>(a.row_tiles),
               kv_heads = static_cast<unsigned>(a.num_kv_heads) / kHeadsInRow;
    return {static_cast<int>(id % splits), kBlockM * static_cast<int>(tile % row_tiles),
            static_cast<int>(tile / row_tiles % kv_heads),
            static_cast<int>(tile / row_tiles / kv_heads)};
  }
  FULMEN_DEVICE RowMap rows(const ForwardArguments& a, int head_in_row) const {
    return {a, batch, (kv_heads * kHeadsInRow + head_in_row) * a.group_size,
            a.seqlen_q * a.group_size};
  }
};

// The keys of the split: those that some row attends, from a multiple of kBlockN on, and those that
// need no mask.
struct SplitKeys {
  Int64 first;  // of the first tile
  algorithm::KeyRange any, whole;

  FULMEN_DEVICE static SplitKeys of(const ForwardArguments& a, const Place& place,
                                    const RowMap& map) {
    const Int64 rows_end =
        place.first_row + kBlockM < map.end ? place.first_row + kBlockM : map.end;
    if (rows_end <= place.first_row) return {0, {0, 0}, {0, 0}};
    const Int64 first_query = map.query(place.first_row), query_end = map.query(rows_end - 1) + 1;
    const algorithm::Band band = band_of(a);
    const algorithm::KeyRange any = band.any(first_query, query_end),
                              whole = band.all(first_query, query_end);
    // Splits begin at fixed keys, whatever the band: those outside have nothing to do.
    const Int64 split_begin = place.split * a.split_keys, split_end = split_begin + a.split_keys;
    const Int64 begin = any.begin > split_begin ? any.begin : split_begin,
                end = any.end < split_end ? any.end : split_end;
    if (end <= begin) return {0, {0, 0}, {0, 0}};
    return {begin / kBlockN * kBlockN, {begin, end}, whole};
  }
  FULMEN_DEVICE bool is_masked(Int64 key) const {
    return key < whole.begin || key + kBlockN > whole.end || key < any.begin ||
           key + kBlockN > any.end;
  }
  // Keys of the tile that no row attends may be NaN, also as values.
  FULMEN_DEVICE bool has_foreign_keys(Int64 key) const {
    return key < any.begin || key + kBlockN > any.end;
  }
};

// A split's tiles in order, as LookedAtTiles asks for them.
struct SplitTiles {
  Int64 first;
  int count;

  FULMEN_DEVICE static SplitTiles of(const SplitKeys& split) {
    return {split.first, static_cast<int>(tiles_of(split.any.end - split.first, kBlockN))};
  }
  FULMEN_DEVICE Int64 first_key(int n) const { return first + static_cast<Int64>(n) * kBlockN; }
};
// kMaskBits: what the mask says of the workgroup's rows, whose heads have one.
FULMEN_DEVICE MaskedRows masked_rows(const Place& place, const RowMap& map) {
  if constexpr (!kMaskBits) return {};
  const Int64 behind = place.first_row + kBlockM, end = behind < map.end ? behind : map.end;
  if (end <= place.first_row) return {};
  return MaskedRows::of(map.arguments, map.batch, map.first_head, map.query(place.first_row),
                        map.query(end - 1) + 1);
}

// Visits a split's tiles, of those that the mask leaves: the first key, whether the mask lets each
// row attend the whole tile, and some row each of its keys.
template <class Visit>
FULMEN_DEVICE void for_each_tile(const SplitKeys& split, const MaskedRows& rows,
                                 const Visit& visit) {
  if constexpr (kMaskBits) {
    const SplitTiles order = SplitTiles::of(split);
    KeptTiles<SplitTiles> tiles(rows, order);
#pragma unroll 1
    for (int n = tiles.next(0); n < order.count; n = tiles.next(n + 1))
      visit(order.first_key(n), tiles.is_whole(n), tiles.has_all_keys(n));
  } else {
#pragma unroll 1
    for (Int64 key = split.first; key < split.any.end; key += kBlockN) visit(key, true, true);
  }
}

}  // namespace fulmen::kernels
