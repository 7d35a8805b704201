// Products in 8 bits: sums of codes as the numbers that scores are made of.
//
// int8: a sum begins with the bits of kCodeOrigin, and is an integer. As a float it is then
// kCodeOrigin and the sum of the codes' products, exactly: nothing is converted.
#pragma once

#include "core/config.h"
#include "tile/fp8.h"
#include "tile/int8_workspace.h"

namespace fulmen::kernels {

constexpr float kCodeOrigin = kInt8Products ? 0x1.8p23F : 0.0F;
constexpr int kLargestInt8 = 127;
static_assert(!kInt8Products || kLargestInt8 * kLargestInt8 * kHeadDim < 1 << 22,
              "int8: a sum of products is below half of kCodeOrigin's unit's range");

FULMEN_DEVICE Int8Workspace int8_workspace(const ForwardArguments& a) {
  return Int8Workspace::of(a.batch, a.num_heads, a.num_kv_heads, a.seqlen_q, a.seqlen_k, kHeadDim);
}
FULMEN_DEVICE float* int8_floats(const ForwardArguments& a, Int64 at) {
  return reinterpret_cast<float*>(a.codes + at);
}

// A head's codes: rows of kHeadDim bytes, as if they were of half as many elements.
FULMEN_DEVICE const KvElement* key_codes(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
  const Int64 head = batch * a.num_kv_heads + kv_head,
              at = kFp8Products ? fp8_workspace(a).k : int8_workspace(a).k;
  return reinterpret_cast<const KvElement*>(a.codes + at + head * a.seqlen_k * kHeadDim);
}
FULMEN_DEVICE const Element* query_codes(const ForwardArguments& a, Int64 batch, Int64 head) {
  const Int64 query_head = batch * a.num_heads + head,
              at = kFp8Products ? fp8_workspace(a).q : int8_workspace(a).q;
  return reinterpret_cast<const Element*>(a.codes + at + query_head * a.seqlen_q * kHeadDim);
}
// kCodeValues: a head's panels.
FULMEN_DEVICE const KvElement* value_codes(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
  const Fp8Workspace w = fp8_workspace(a);
  const Int64 head = batch * a.num_kv_heads + kv_head;
  return reinterpret_cast<const KvElement*>(a.codes + w.v +
                                            head * w.panels * a.head_dim_v * kFp8PanelKeys);
}

// What sums begin with. AMD: in registers of their own, which products only read.
template <int kCount>
FULMEN_DEVICE void set_origin(float (&origin)[kCount]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) origin[n] = kCodeOrigin;
  keep_together(origin);
}

// What a row's sums of codes are multiplied with, and what is added then. kPlainScale: the scores
// stay sums, with softmax_scale among the factors, and `start` comes to the row's maximum at the
// end.
struct CodeRow {
  float scale, start;

  FULMEN_DEVICE static CodeRow load(const ForwardArguments& a, Int64 batch, Int64 head, Int64 row) {
    // 0 times the -inf of a masked key would be NaN.
    constexpr float kLeast = 0x1p-126F;
    const Int64 query_head = batch * a.num_heads + head, query_row = query_head * a.seqlen_q + row,
                kv_head = batch * a.num_kv_heads + head / a.group_size;
    if constexpr (kFp8Products) {
      const Fp8Workspace of_fp8 = fp8_workspace(a);
      const float scale = global_load(fp8_floats(a, of_fp8.q_scales) +
                                      query_head * of_fp8.query_blocks + row / kFp8Queries) *
                          global_load(fp8_floats(a, of_fp8.k_scales) + kv_head);
      return {kPlainScale ? larger(a.scale * scale, kLeast) : scale, 0};
    }
    const Int8Workspace w = int8_workspace(a);
    const auto of_q =
        global_load(reinterpret_cast<const Words<2>*>(a.codes + w.q_rows) + query_row);
    const float scale =
        bits_float(of_q.word[0]) * global_load(int8_floats(a, w.k_scales) + kv_head);
    const float start = bits_float(of_q.word[1]);
    if constexpr (kPlainScale) return {larger(a.scale * scale, kLeast), a.scale * start};
    return {scale, start - kCodeOrigin * scale};
  }
  // q.k of a sum.
  FULMEN_DEVICE float score(float sum) const { return fused(sum, scale, start); }
};

}  // namespace fulmen::kernels
