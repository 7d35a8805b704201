// The terms of CDNA1 to CDNA3: products of 16 x 16 x 16. A target defines
// mfma_f32_16x16x16<T>(d, a, b) before.
//   operands A[i][k], B[k][j]   i, j = l % 16, k = 4 (l / 16) + e (4 elements)
//   accumulator D[i][j]         i = 4 (l / 16) + e, j = l % 16
// Scores are K Q^T: a lane owns one query row and 4 neighbouring keys, just what the product V^T
// P^T takes from it. Operands of q.k cover 32 dims by two instructions, so that a lane reads 16
// bytes: the order of dims is free where both operands share it.
#pragma once

#include "targets/mfma_lanes.h"
#include "targets/no_transposed_reads.h"

namespace fulmen::kernels {

FULMEN_DEVICE float row_max(float x) {
  x = larger(x, shuffle_xor(x, 16));
  return larger(x, shuffle_xor(x, 32));
}
FULMEN_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 16);
  return x + shuffle_xor(x, 32);
}

template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
  const Words<4>& k = keys.piece[0];
  const Words<4>& q = queries.piece[0];
  mfma_f32_16x16x16<T>(scores, Words<2>{{k.word[0], k.word[1]}}, Words<2>{{q.word[0], q.word[1]}});
  mfma_f32_16x16x16<T>(scores, Words<2>{{k.word[2], k.word[3]}}, Words<2>{{q.word[2], q.word[3]}});
}

struct ProbabilityOperand {
  Words<2> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  return {
      {{pack_probabilities<T, kShifted>(p[0], p[1]), pack_probabilities<T, kShifted>(p[2], p[3])}}};
}
using ValuePiece = Words<2>;
struct ValueOperand {
  ValuePiece piece[1];
};
constexpr int kValueProducts = 1;  // instructions of multiply_output
template <class T>
FULMEN_DEVICE void multiply_output_part(float (&out)[kElements], const ProbabilityOperand& p,
                                        const ValueOperand& v, int /*n*/) {
  mfma_f32_16x16x16<T>(out, v.piece[0], p.words);
}
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  mfma_f32_16x16x16<T>(out, v.piece[0], p.words);
}

// V^T in LDS, [dim][position]: a lane reads 8 bytes of 16 keys.
constexpr int kValueDepth = 16;
FULMEN_DEVICE int value_piece(int /*p*/) { return 4 * (lane_id() / 16); }
FULMEN_DEVICE constexpr int value_key(int position) { return position; }
FULMEN_DEVICE int value_position(int key) { return key; }

constexpr int kDirectKeys = 4;
FULMEN_DEVICE int direct_key(int m) { return 4 * (lane_id() / 16) + m; }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[2]) {
  mfma_f32_16x16x16<T>(out, Words<2>{{pairs[0], pairs[1]}}, p.words);
}

}  // namespace fulmen::kernels
