// Which query rows a workgroup of prefill.h has, and which tiles of keys they attend.
#pragma once

#include "core/sequence.h"
#include "tile/int8.h"
#include "tile/mask_span.h"
#include "tile/order.h"
#include "tile/sources.h"

namespace fulmen::kernels {

// A workgroup's rows, and the tiles of the keys that they attend.
struct PrefillRows {
  QueryBlock block;
  Int64 row_end;
  algorithm::Band band;
  algorithm::KeyRange keys;
  TileOrder order;

  FULMEN_DEVICE static PrefillRows of(const ForwardArguments& a, const QueryBlock& block) {
    const Int64 row_end =
        block.row_begin + kBlockM < a.seqlen_q ? block.row_begin + kBlockM : a.seqlen_q;
    const algorithm::Band band =  // without one AMD's loops are longer
        kBand || !kCopiesToLds ? band_of(a) : algorithm::Band{a.seqlen_k, a.diagonal, -1, -1};
    algorithm::KeyRange keys = band.any(block.row_begin, row_end),
                        whole = band.all(block.row_begin, row_end);
    if constexpr (!kCopiesToLds) {  // others pass over tiles: kKnowsTiles
      keys = keys_in_mask(a, block.batch, block.head, block.row_begin, row_end, keys);
      whole = whole_in_mask(whole, keys);
    }
    return {block, row_end, band, keys, TileOrder::of(tile_range(keys), whole)};
  }
  FULMEN_DEVICE StageSource source(const ForwardArguments& a) const {
    // No division where rows follow rows, and a head has its own keys.
    const int batch = block.batch,
              kv_head = kPersistent && a.group_size == 1 ? block.head : block.head / a.group_size;
    return {a,
            batch,
            block.head,
            block.row_begin,
            row_end,
            kCodeKeys ? key_codes(a, batch, kv_head) : head_rows(a.k, batch, kv_head),
            kCodeValues ? value_codes(a, batch, kv_head) : head_rows(a.v, batch, kv_head),
            keys.begin,
            keys.end};
  }
  FULMEN_DEVICE QuerySource queries(const ForwardArguments& a) const {
    if constexpr (kCodeKeys) {
      return {query_codes(a, block.batch, block.head), kHeadDim / 2, block.row_begin, a.seqlen_q,
              kHeadDim};
    }
    return {at<Element>(a.q, block.batch, 0, block.head), a.q.row, block.row_begin, a.seqlen_q,
            a.head_dim};
  }
};

// The tile is in LDS, for all lanes.
template <class Stage>
FULMEN_DEVICE void publish(Stage& stage, int buffer) {
  stage.publish(buffer);
  barrier();
}

}  // namespace fulmen::kernels
