// Quantized keys and values as numbers of q's dtype: the scales of a tile's head, and of its rows.
#pragma once

#include "forward/parts/query_tiles.h"
#include "tile/kv_numbers.h"

namespace fulmen::kernels {

// The sequence's arguments with the head's scale of k in the scale of q.k, and v's in value_scale.
// Where tokens have scales, the view of these begins with the sequence's first row of the head.
FULMEN_DEVICE ForwardArguments in_numbers(const QueryTile& t, const ForwardArguments& call) {
  ForwardArguments a = t.sequence(call);
  const int kv_head = t.head / call.group_size;
  const BoxPlace place = t.keys_in_map(call);
  const KvNumbers w = kv_numbers(call);
  if constexpr (kKeyScaleOfToken) {
    a.k_scale.data = row_factors<false>(call, w, place.batch, kv_head, place.row);
  } else {
    a.scale *= HeadFactor::of(call, t.batch, kv_head).size;
  }
  a.value_scale = 1;
  if constexpr (kValueScaleOfToken) {
    a.v_scale.data = row_factors<true>(call, w, place.batch, kv_head, place.row);
  } else {
    const float factor = StoredHead<true>::of(call, t.batch, kv_head).factor;
    a.value_scale = factor + (factor - factor);
  }
  return a;
}

}  // namespace fulmen::kernels
