// Quantized keys and values as numbers of q's dtype: where forward/kv_numbers.h writes them in the
// workspace, for the host, which reserves it, and for the kernels whose tiles the TMA brings from
// there.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// In bytes from ForwardArguments::codes on. batch: 1 of packed keys, whose rows are those of all
// sequences; pages become rows one behind the other.
//   k  [batch, num_kv_heads, rows, pitch]          codes: the scale is not in them
//   v  [batch, num_kv_heads, rows, pitch_v]
//   k_factors, v_factors  [batch, num_kv_heads, factor_rows()]   fp32, where each token has a scale
struct KvNumbers {
  using Bytes = long long;
  Bytes batch, rows, pitch, pitch_v;  // pitches in numbers
  Bytes k, v, k_factors, v_factors, total;

  FULMEN_ALGORITHM static KvNumbers of(Bytes batch, Bytes num_kv_heads, Bytes rows, int head_dim,
                                       int head_dim_v, bool token_keys, bool token_values) {
    constexpr Bytes kLine = 128, kNumber = 2, kFloat = 4, kPiece = 8;
    const auto behind = [](Bytes at, Bytes bytes) {
      return (at + bytes + kLine - 1) / kLine * kLine;
    };
    const Bytes all = batch * num_kv_heads * rows;
    const auto pieces = [](int dims) { return (dims + kPiece - 1) / kPiece * kPiece; };
    KvNumbers w{};
    w.batch = batch;
    w.rows = rows;
    w.pitch = pieces(head_dim);
    w.pitch_v = pieces(head_dim_v);
    w.v = behind(w.k, all * w.pitch * kNumber);
    w.k_factors = behind(w.v, all * w.pitch_v * kNumber);
    const Bytes factors = batch * num_kv_heads * w.factor_rows() * kFloat;
    w.v_factors = behind(w.k_factors, token_keys ? factors : 0);
    w.total = behind(w.v_factors, token_values ? factors : 0);
    return w;
  }
  // Two neighbours are read at once.
  FULMEN_ALGORITHM Bytes factor_rows() const { return (rows + 1) / 2 * 2; }
};

}  // namespace fulmen::kernels
