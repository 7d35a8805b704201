// Products in int8: where codes of q and k, and what belongs to them, lie in the workspace, for the
// host, which reserves it, and for the kernels that write them (forward/int8_*.h) and read them
// (forward/prefill_int8.h).
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// Rows of q, or of k, whose codes a workgroup writes.
constexpr int kCodedRows = 64;
// Parts of a head's keys, each with sums of its own: at most so many, of at least so many rows.
constexpr int kMostKeyParts = 64, kLeastPartRows = 512;
// A part's numbers for each dim: the sum, the largest, and the largest of the numbers' negatives.
constexpr int kKeySums = 3;

// In bytes from ForwardArguments::codes on.
//   k     [batch, num_kv_heads, seqlen_k, head_dim]     scales [batch, num_kv_heads]
//   q     [batch, num_heads, seqlen_q, head_dim]        rows   [batch, num_heads, seqlen_q, 2]
//   sums  [batch, num_kv_heads, parts, kKeySums, head_dim]
// `rows`: the scale of q's codes, and q times the mean of its head's keys.
struct Int8Workspace {
  using Bytes = long long;
  Bytes k, q, k_scales, q_rows, sums, total;
  Bytes parts, part_rows;

  // head_dim: of the codes, a multiple of 16.
  FULMEN_ALGORITHM static Int8Workspace of(Bytes batch, Bytes num_heads, Bytes num_kv_heads,
                                           Bytes seqlen_q, Bytes seqlen_k, int head_dim) {
    constexpr Bytes kLine = 128, kFloat = 4;
    const auto behind = [](Bytes at, Bytes bytes) {
      return (at + bytes + kLine - 1) / kLine * kLine;
    };
    const Bytes heads = batch * num_heads, kv_heads = batch * num_kv_heads;
    Int8Workspace w{};
    const Bytes rows = (seqlen_k + kMostKeyParts - 1) / kMostKeyParts;
    w.part_rows = rows > kLeastPartRows ? rows : kLeastPartRows;
    w.parts = (seqlen_k + w.part_rows - 1) / w.part_rows;
    w.q = behind(w.k, kv_heads * seqlen_k * head_dim);
    w.k_scales = behind(w.q, heads * seqlen_q * head_dim);
    w.q_rows = behind(w.k_scales, kv_heads * kFloat);
    w.sums = behind(w.q_rows, heads * seqlen_q * 2 * kFloat);
    w.total = behind(w.sums, kv_heads * w.parts * kKeySums * head_dim * kFloat);
    return w;
  }
};

// LDS of the kernels that write codes, in bytes: the mean key, a number a wave, and for each piece
// of 8 dims of a block's rows the largest number and what it gives q times the mean; then a number
// a row.
struct CodeLayout {
  int waves_at, largest_at, products_at, factors_at, total;

  FULMEN_ALGORITHM static CodeLayout of(int head_dim) {
    constexpr int kFloat = 4, kMostWaves = 8;
    const int pieces = kCodedRows * (head_dim / 8);
    CodeLayout l{};
    l.waves_at = kFloat * head_dim;
    l.largest_at = l.waves_at + kFloat * kMostWaves;
    l.products_at = l.largest_at + kFloat * pieces;
    l.factors_at = l.products_at + kFloat * pieces;
    l.total = l.factors_at + kFloat * kCodedRows;
    return l;
  }
};
// LDS of the kernel that sums keys: what each of its lanes has of 8 dims.
FULMEN_ALGORITHM int key_sum_bytes(int workgroup) { return workgroup * 8 * kKeySums * 4; }

}  // namespace fulmen::kernels
