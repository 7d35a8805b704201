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
//   k_factors, v_factors  [batch, num_kv_heads, rows]   fp32, where each token has a scale
struct KvNumbers {
  using Bytes = long long;
  Bytes batch, heads, rows, pitch, pitch_v;  // pitches in numbers
  Bytes k, v, k_factors, v_factors, total;

  // A row of a head among all rows; place: its batch, 0 of packed keys, and its row there.
  struct Place {
    Bytes batch, row;
  };
  FULMEN_ALGORITHM Bytes row(const Place& place, int kv_head) const {
    return (place.batch * heads + kv_head) * rows + place.row;
  }

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
    w.heads = num_kv_heads;
    w.rows = rows;
    w.pitch = pieces(head_dim);
    w.pitch_v = pieces(head_dim_v);
    w.v = behind(w.k, all * w.pitch * kNumber);
    w.k_factors = behind(w.v, all * w.pitch_v * kNumber);
    w.v_factors = behind(w.k_factors, token_keys ? all * kFloat : 0);
    w.total = behind(w.v_factors, token_values ? all * kFloat : 0);
    return w;
  }
};

}  // namespace fulmen::kernels
