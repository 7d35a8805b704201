// Products in 8 bits: the scales of a warpgroup's queries, and of their keys and values.
#pragma once

#include "forward/parts/number_scales.h"
#include "tile/fp8.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// The arguments with the scales of 64 queries from first_row on, and of their keys, in the scale of
// q.k, and the values' in value_scale.
FULMEN_DEVICE ForwardArguments in_codes(const ForwardArguments& call, int batch, int head,
                                        Int64 first_row) {
  const Fp8Workspace w = fp8_workspace(call);
  const Int64 block = first_row < call.seqlen_q ? first_row / kFp8Queries : 0,
              query_head = static_cast<Int64>(batch) * call.num_heads + head,
              kv_head = static_cast<Int64>(batch) * call.num_kv_heads + head / call.group_size;
  ForwardArguments a = call;
  a.scale *= global_load(fp8_floats(call, w.q_scales) + query_head * w.query_blocks + block) *
             global_load(fp8_floats(call, w.k_scales) + kv_head);
  a.value_scale = kFp8Unshift * global_load(fp8_floats(call, w.v_scales) + kv_head);
  return a;
}
// What a warpgroup's queries of a tile are computed with.
FULMEN_DEVICE decltype(auto) arguments_of(const QueryTile& t, const ForwardArguments& call,
                                          Int64 first_row) {
  if constexpr (kFp8Products) {
    return in_codes(call, t.batch, t.head, first_row);
  } else if constexpr (kKvNumbers) {
    return in_numbers(t, call);
  } else {
    return t.sequence(call);
  }
}

}  // namespace fulmen::kernels
