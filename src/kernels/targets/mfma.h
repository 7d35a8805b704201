// The terms of CDNA1 to CDNA3: products of 16 x 16 x 16 and, but for CDNA1, of 32 x 32 x 8. A
// target defines mfma_f32_16x16x16<T>(d, a, b) and mfma_f32_32x32x8 before. With T = kScoreTile:
//   operands A[i][k], B[k][j]   i, j = l % T, k = 4 (l / T) + e (4 elements)
//   accumulator D[i][j]         of mfma_lanes.h
// Scores are K Q^T: a lane owns one query row and runs of 4 neighbouring keys, each just what a
// product V^T P^T takes from it. Operands of q.k cover 32 or 16 dims by two instructions, so that a
// lane reads 16 bytes: the order of dims is free where both operands share it.
#pragma once

#include "targets/mfma_lanes.h"
#include "targets/no_transposed_reads.h"

namespace fulmen::kernels {

FULMEN_DEVICE float row_max(float x) {
  if constexpr (kScoreTile == 16) x = larger(x, shuffle_xor(x, 16));
  return larger(x, shuffle_xor(x, 32));
}
FULMEN_DEVICE float row_sum(float x) {
  if constexpr (kScoreTile == 16) x += shuffle_xor(x, 16);
  return x + shuffle_xor(x, 32);
}

// One instruction: 16 dims or keys of products of 16 x 16, 8 of those of 32 x 32.
template <class T>
FULMEN_DEVICE void mfma_step(float (&d)[kElements], const Words<2>& a, const Words<2>& b) {
  if constexpr (kScoreTile == 32) {
    mfma_f32_32x32x8<T>(d, a, b);
  } else {
    mfma_f32_16x16x16<T>(d, a, b);
  }
}

// The n-th of two instructions.
template <class T>
FULMEN_DEVICE void multiply_scores_part(float (&scores)[kElements], const RowOperand& keys,
                                        const RowOperand& queries, int n) {
  const unsigned *const k = keys.piece[0].word + 2 * n, *const q = queries.piece[0].word + 2 * n;
  mfma_step<T>(scores, Words<2>{{k[0], k[1]}}, Words<2>{{q[0], q[1]}});
}
template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
#pragma unroll
  for (int n = 0; n < 2; ++n) multiply_scores_part<T>(scores, keys, queries, n);
}

constexpr int kValueProducts = kElements / 4;  // instructions of multiply_output
struct ProbabilityOperand {
  Words<2 * kValueProducts> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  ProbabilityOperand operand;
#pragma unroll
  for (int w = 0; w < kElements / 2; ++w)
    operand.words.word[w] = pack_probabilities<T, kShifted>(p[2 * w], p[2 * w + 1]);
  return operand;
}
using ValuePiece = Words<2>;
struct ValueOperand {
  ValuePiece piece[kValueProducts];
};
// The n-th of them.
template <class T>
FULMEN_DEVICE void multiply_output_part(float (&out)[kElements], const ProbabilityOperand& p,
                                        const ValueOperand& v, int n) {
  const unsigned* const w = p.words.word + 2 * n;
  mfma_step<T>(out, v.piece[n], Words<2>{{w[0], w[1]}});
}
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
#pragma unroll
  for (int n = 0; n < kValueProducts; ++n) multiply_output_part<T>(out, p, v, n);
}

// V^T in LDS, [dim][position]. A lane reads 8 bytes of 16 keys; of 32, which it has as runs of 4,
// 32 bytes.
constexpr int kValueDepth = kScoreTile, kValuePieces = kValueProducts;
FULMEN_DEVICE int value_piece(int p) {
  return 4 * kValueProducts * (lane_id() / kScoreTile) + 4 * p;
}
FULMEN_DEVICE constexpr int value_key(int position) {
  if (kScoreTile == 16) return position;
  return position % 16 / 4 * 8 + position / 16 * 4 + position % 4;
}
FULMEN_DEVICE int value_position(int key) {
  if (kScoreTile == 16) return key;
  return key / 4 % 2 * 16 + key / 8 * 4 + key % 4;
}

constexpr int kDirectKeys = 4;
FULMEN_DEVICE int direct_key(int m) { return 4 * (lane_id() / 16) + m; }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[2]) {
  mfma_f32_16x16x16<T>(out, Words<2>{{pairs[0], pairs[1]}}, p.words);
}

}  // namespace fulmen::kernels
