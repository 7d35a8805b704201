// Products in 8 bits: where codes of q, k and v and their scales lie in the workspace, for the
// host, which reserves it, and for the kernels that write them (forward/fp8_*.h) and read them
// (forward/prefill_fp8.h, forward/prefill_e4m3.h).
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// Queries that share a scale: a warpgroup's.
constexpr int kFp8Queries = 64;
// Rows of k and v of which a workgroup looks for the largest number.
constexpr int kFp8PartRows = 512;

// Keys of a panel of transposed values: 128 are a panel's row in LDS; tiles are whole panels.
FULMEN_ALGORITHM int fp8_panel_keys(int block_n) {
  const int panels = (block_n + 127) / 128;
  return block_n / panels;
}

// In bytes from ForwardArguments::codes on.
//   q  [batch, num_heads, seqlen_q, row_bytes]         scales [batch, num_heads, query_blocks]
//   k  [batch, num_kv_heads, seqlen_k, row_bytes]      scales [batch, num_kv_heads]
//   v  [batch, num_kv_heads, panels, head_dim_v, panel_keys]   the same
// `largest`: [2][batch, num_kv_heads, parts], of k and of v.
struct Fp8Workspace {
  using Bytes = long long;
  Bytes q, k, v, q_scales, k_scales, v_scales, largest, total;
  Bytes query_blocks, panels, parts;

  // head_dim: of q's and k's codes, a multiple of 32; head_dim_v: as in memory.
  FULMEN_ALGORITHM static Fp8Workspace of(Bytes batch, Bytes num_heads, Bytes num_kv_heads,
                                          Bytes seqlen_q, Bytes seqlen_k, int head_dim,
                                          int head_dim_v, int block_n) {
    constexpr Bytes kLine = 128, kFloat = 4;
    const auto behind = [](Bytes at, Bytes bytes) {
      return (at + bytes + kLine - 1) / kLine * kLine;
    };
    const int panel_keys = fp8_panel_keys(block_n);
    const Bytes heads = batch * num_heads, kv_heads = batch * num_kv_heads;
    Fp8Workspace w{};
    w.query_blocks = (seqlen_q + kFp8Queries - 1) / kFp8Queries;
    w.panels = (seqlen_k + block_n - 1) / block_n * (block_n / panel_keys);
    w.parts = (seqlen_k + kFp8PartRows - 1) / kFp8PartRows;
    w.k = behind(w.q, heads * seqlen_q * head_dim);
    w.v = behind(w.k, kv_heads * seqlen_k * head_dim);
    w.q_scales = behind(w.v, kv_heads * w.panels * head_dim_v * panel_keys);
    w.k_scales = behind(w.q_scales, heads * w.query_blocks * kFloat);
    w.v_scales = behind(w.k_scales, kv_heads * kFloat);
    w.largest = behind(w.v_scales, kv_heads * kFloat);
    w.total = behind(w.largest, 2 * kv_heads * w.parts * kFloat);
    return w;
  }
};

}  // namespace fulmen::kernels
