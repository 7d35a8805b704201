// Quantized keys and values as numbers of q's dtype: what the kernel that writes them and those
// that read them agree about.
#pragma once

#include "core/stored_rows.h"
#include "tile/kv_numbers_workspace.h"

namespace fulmen::kernels {

FULMEN_DEVICE KvNumbers kv_numbers(const ForwardArguments& a) {
  const bool packed = kVariable && a.sequences.cu_seqlens_k != nullptr;
  return KvNumbers::of(packed ? 1 : a.batch, a.num_kv_heads, packed ? a.rows_k : a.seqlen_k,
                       a.head_dim, a.head_dim_v, kKeyScaleOfToken, kValueScaleOfToken);
}
// Where a sequence's first row is in each head.
FULMEN_DEVICE KvNumbers::Place first_row_of(const ForwardArguments& call, Int64 batch) {
  if (!kVariable || call.sequences.cu_seqlens_k == nullptr) return {batch, 0};
  return {0, PlacedSequence::of(call, batch).k_row};
}
// What is written of tokens' scales, from a row of all rows on.
template <bool kValues>
FULMEN_DEVICE float* row_factors(const ForwardArguments& a, const KvNumbers& w, Int64 row) {
  return reinterpret_cast<float*>(a.codes + (kValues ? w.v_factors : w.k_factors)) + row;
}

// The scale of a head's keys, where tokens have none: its size goes with the scale of q.k, which
// stays finite and above 0, so that rows without keys are what they are; its sign goes with the
// numbers. One that makes all scores 0 makes the numbers 0, one that is not finite makes them NaN.
struct HeadFactor {
  float size, sign;  // sign: 1, -1, 0 or NaN

  FULMEN_DEVICE static HeadFactor of(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
    if constexpr (kKeyScaleOfToken) return {1.0F, 1.0F};
    const float factor = StoredHead<false>::of(a, batch, kv_head).factor;
    if (!(absolute(factor) < kInfinity)) return {1.0F, kNan};
    if (absolute(factor * a.scale) < 0x1p-126F) return {1.0F, 0.0F};
    return {absolute(factor), factor < 0 ? -1.0F : 1.0F};
  }
};

}  // namespace fulmen::kernels
