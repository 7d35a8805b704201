// The terms of CDNA's targets: products of 16 x 16 x 16 by v_mfma_f32, wave64. A target defines
// mfma_f32_16x16x16<T>(d, a, b) before.
//   operands A[i][k], B[k][j]   i, j = l % 16, k = 4 (l / 16) + e (4 elements)
//   accumulator D[i][j]         i = 4 (l / 16) + e, j = l % 16
// Scores are K Q^T: a lane owns one query row and 4 neighbouring keys, just what the product V^T
// P^T takes from it. Operands of q.k cover 32 dims by two instructions, so that a lane reads 16
// bytes: the order of dims is free where both operands share it.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

constexpr bool kCopiesToLds = false;
constexpr bool kTransposedValues = true;
constexpr bool kAnyAlignment = true;
constexpr int kScoreTile = 16;
constexpr int kRowsPerLane = 1;
constexpr int kElements = 4;
FULMEN_DEVICE constexpr int row_slot(int /*e*/) { return 0; }
FULMEN_DEVICE int tile_row(int /*slot*/) { return lane_id() % 16; }
constexpr int kColumnRun = 4;
FULMEN_DEVICE int tile_column(int e) { return 4 * (lane_id() / 16) + e; }
FULMEN_DEVICE constexpr int block_sharer(bool /*rows_are_keys*/, int n) { return 1 << n; }
constexpr int kOutputRun = 4;
FULMEN_DEVICE int output_column(int e) { return tile_column(e); }
FULMEN_DEVICE float row_max(float x) {
  x = larger(x, shuffle_xor(x, 16));
  return larger(x, shuffle_xor(x, 32));
}
FULMEN_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 16);
  return x + shuffle_xor(x, 32);
}

constexpr int kMmaK = 32;
constexpr int kPieces = 1;
FULMEN_DEVICE int piece_row(int /*p*/) { return lane_id() % 16; }
FULMEN_DEVICE int piece_dim(int /*p*/) { return 8 * (lane_id() / 16); }
struct RowOperand {
  Words<4> piece[kPieces];
};
// What tiles in LDS are read as: the same.
constexpr int kTileMmaK = kMmaK;
using QueryOperand = RowOperand;
using KeyOperand = RowOperand;
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
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  mfma_f32_16x16x16<T>(out, v.piece[0], p.words);
}

// V^T in LDS, [dim][position]: a lane reads 8 bytes of 16 keys.
constexpr int kValueDepth = 16;
constexpr int kValuePieces = 1;
FULMEN_DEVICE int value_dim() { return lane_id() % 16; }
FULMEN_DEVICE int value_piece(int /*p*/) { return 4 * (lane_id() / 16); }
FULMEN_DEVICE constexpr int value_key(int position) { return position; }
FULMEN_DEVICE int value_position(int key) { return key; }

constexpr int kDirectDims = 16;
constexpr int kDirectElements = 4;
constexpr int kDirectKeys = 4;
FULMEN_DEVICE int direct_lane() { return lane_id() % 16; }
FULMEN_DEVICE int direct_key(int m) { return 4 * (lane_id() / 16) + m; }
FULMEN_DEVICE int direct_column(int e) { return tile_column(e); }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[2]) {
  mfma_f32_16x16x16<T>(out, Words<2>{{pairs[0], pairs[1]}}, p.words);
}

}  // namespace fulmen::kernels
