// CDNA4: v_mfma_f32_16x16x32, wave64.
//   operands A[i][k], B[k][j]   i, j = l % 16, k = 8 (l / 16) + e (8 elements)
//   accumulator D[i][j]         i = 4 (l / 16) + e, j = l % 16
// Scores are K Q^T: a lane owns one query row and 4 neighbouring keys. What it holds of two key
// tiles is one operand of the product V^T P^T, of 32 keys: V^T lies in LDS in that order.
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
  swap_rows_of_16(x, other);
  other = x = larger_after_swap(x, other);
  swap_halves(x, other);
  return larger_after_swap(x, other);
}
FULMEN_DEVICE float row_sum(float x) {
  float other = x;
  swap_rows_of_16(x, other);
  other = x = x + other;
  swap_halves(x, other);
  return x + other;
}

template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
  mfma_f32_16x16x32<T>(scores, keys.piece[0], queries.piece[0]);
}

struct ProbabilityOperand {
  Words<4> words;
};
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
  ValuePiece piece[1];
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  mfma_f32_16x16x32<T>(out, v.piece[0], p.words);
}

// Prefill keeps V as rows in LDS.
constexpr bool kReadsTransposed = true;

// V^T in LDS, [dim][position]: a lane reads 16 bytes of 32 keys, 4 of each key tile.
constexpr int kValueDepth = 32;
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
