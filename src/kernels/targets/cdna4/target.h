// CDNA4: v_mfma_f32_16x16x32 or v_mfma_f32_32x32x16, wave64, in the lanes of mfma_lanes.h.
//   operands A[i][k], B[k][j]   k = 8 (l / kScoreTile) + e (8 elements)
// Scores are K Q^T. What a lane holds of 32 keys, which are two key tiles of 16 or one of 32, is
// what the product V^T P^T takes from it: by one instruction or by two of 16 keys each.
#pragma once

#include "targets/mfma_lanes.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/cdna4/emulated.h"
#else
#include "targets/cdna4/instruction.h"
#endif
#include "targets/mfma_f32_16x16x32_fp8.h"
#include "targets/mfma_i32_16x16x32.h"

namespace fulmen::kernels {

constexpr bool kFlushesSubnormals = false;

// A number twice, of which the swap leaves each lane its own and its partner's, in one order or the
// other: maximum and sum do not ask which.
FULMEN_DEVICE float row_max(float x) {
  float other = x;
  if constexpr (kScoreTile == 16) {
    swap_rows_of_16(x, other);
    other = x = larger_after_swap(x, other);
  }
  swap_halves(x, other);
  return larger_after_swap(x, other);
}
FULMEN_DEVICE float row_sum(float x) {
  float other = x;
  if constexpr (kScoreTile == 16) {
    swap_rows_of_16(x, other);
    other = x = x + other;
  }
  swap_halves(x, other);
  return x + other;
}

template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
  if constexpr (kScoreTile == 32) {
    mfma_f32_32x32x16<T>(scores, keys.piece[0], queries.piece[0]);
  } else {
    mfma_f32_16x16x32<T>(scores, keys.piece[0], queries.piece[0]);
  }
}
template <class T>
FULMEN_DEVICE void multiply_scores_part(float (&scores)[kElements], const RowOperand& keys,
                                        const RowOperand& queries, int /*n*/) {
  multiply_scores<T>(scores, keys, queries);
}

constexpr int kValueProducts = kScoreTile / 16;  // instructions of multiply_output
struct ProbabilityOperand {
  Words<4 * kValueProducts> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  ProbabilityOperand operand;
#pragma unroll
  for (int w = 0; w < kElements / 2; ++w)
    operand.words.word[w] = pack_probabilities<T, kShifted>(p[2 * w], p[2 * w + 1]);
  return operand;
}
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements],
                                            const float (&next)[kElements]) {
  return {
      {{pack_probabilities<T, kShifted>(p[0], p[1]), pack_probabilities<T, kShifted>(p[2], p[3]),
        pack_probabilities<T, kShifted>(next[0], next[1]),
        pack_probabilities<T, kShifted>(next[2], next[3])}}};
}
using ValuePiece = Words<4>;
struct ValueOperand {
  ValuePiece piece[kValueProducts];
};
// The n-th of them.
template <class T>
FULMEN_DEVICE void multiply_output_part(float (&out)[kElements], const ProbabilityOperand& p,
                                        const ValueOperand& v, int n) {
  const unsigned* const w = p.words.word + 4 * n;
  const Words<4> words{{w[0], w[1], w[2], w[3]}};
  if constexpr (kScoreTile == 32) {
    mfma_f32_32x32x16<T>(out, v.piece[n], words);
  } else {
    mfma_f32_16x16x32<T>(out, v.piece[n], words);
  }
}
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
#pragma unroll
  for (int n = 0; n < kValueProducts; ++n) multiply_output_part<T>(out, p, v, n);
}

// Prefill keeps V as rows in LDS.
constexpr bool kReadsTransposed = true;

// V^T in LDS, [dim][position]: a lane reads 16 bytes of 32 keys, 4 of each key tile.
constexpr int kValueDepth = 32;
constexpr int kValuePieces = 1;
FULMEN_DEVICE int value_piece(int /*p*/) { return 8 * (lane_id() / 16); }
FULMEN_DEVICE constexpr int value_key(int position) {
  return position % 8 / 4 * 16 + position / 8 * 4 + position % 4;
}
FULMEN_DEVICE int value_position(int key) { return key % 16 / 4 * 8 + key / 16 * 4 + key % 4; }

constexpr int kDirectKeys = 8;
FULMEN_DEVICE int direct_key(int m) { return 4 * (lane_id() / 16) + m / 4 * 16 + m % 4; }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[4]) {
  mfma_f32_16x16x32<T>(out, Words<4>{{pairs[0], pairs[1], pairs[2], pairs[3]}}, p.words);
}

}  // namespace fulmen::kernels
