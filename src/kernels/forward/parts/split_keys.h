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

}  // namespace fulmen::kernels
