// Quantized keys and values as numbers of q's dtype: the scales of a tile's head, and of its rows.
#pragma once

#include "forward/parts/query_tiles.h"
#include "tile/kv_numbers.h"
#include "tile/stored_scales.h"

namespace fulmen::kernels {

// The sequence's arguments with the head's scale of k in the scale of q.k, and v's in value_scale.
FULMEN_DEVICE ForwardArguments in_numbers(const QueryTile& t, const ForwardArguments& call) {
  ForwardArguments a = t.sequence(call);
  const int kv_head = t.head / call.group_size;
  a.scale *= HeadFactor::of(call, t.batch, kv_head).size;
  a.value_scale = scale_of_outputs(call, t.batch, kv_head);
  return a;
}

// What forward/kv_numbers.h wrote of each token's scale: of the sequence's rows of a head, from its
// first one on.
struct TokenFactors {
  const float *keys, *values;
  Int64 rows;

  FULMEN_DEVICE static TokenFactors of(const QueryTile& t, const ForwardArguments& call) {
    const int kv_head = t.head / call.group_size;
    const BoxPlace place = t.keys_in_map(call);
    const KvNumbers w = kv_numbers(call);
    const Int64 row = w.row({place.batch, place.row}, kv_head);
    return {row_factors<false>(call, w, row), row_factors<true>(call, w, row),
            kVariable ? t.work.k_len : call.seqlen_k};
  }
};

}  // namespace fulmen::kernels
