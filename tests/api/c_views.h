// A small call's tensors as the C ABI takes them.
#pragma once

#include <algorithm>

#include "fulmen/fulmen_c.h"
#include "small_call.h"

namespace fulmen::testing {

inline fulmen_tensor view(const Tensor& t) {
  fulmen_tensor c{t.data, static_cast<int32_t>(t.dtype), {}, {}, {}};
  std::copy(t.shape.begin(), t.shape.end(), c.shape);
  std::copy(t.strides.begin(), t.strides.end(), c.strides);
  return c;
}

inline fulmen_tensors views(const AttentionTensors& tensors) {
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  t.q = view(tensors.q);
  t.k = view(tensors.k);
  t.v = view(tensors.v);
  t.out = view(tensors.out);
  t.bias = view(tensors.bias);
  t.keep_mask = view(tensors.keep_mask);
  t.alibi_slopes = view(tensors.alibi_slopes);
  t.sinks = view(tensors.sinks);
  t.lse = view(tensors.lse);
  t.dout = view(tensors.dout);
  t.dlse = view(tensors.dlse);
  t.dq = view(tensors.dq);
  t.dk = view(tensors.dk);
  t.dv = view(tensors.dv);
  t.dbias = view(tensors.dbias);
  t.dsinks = view(tensors.dsinks);
  t.cu_seqlens_q = view(tensors.cu_seqlens_q);
  t.cu_seqlens_k = view(tensors.cu_seqlens_k);
  t.seqlens_k = view(tensors.seqlens_k);
  t.block_table = view(tensors.block_table);
  t.leftpad_k = view(tensors.leftpad_k);
  t.k_scale = view(tensors.k_scale);
  t.v_scale = view(tensors.v_scale);
  t.q_scale = view(tensors.q_scale);
  t.dropout_seed = tensors.dropout_seed;
  t.dropout_offset = tensors.dropout_offset;
  return t;
}
inline fulmen_tensors views(const SmallCall& call) { return views(call.tensors); }

}  // namespace fulmen::testing
