// RDNA4: v_wmma_f32_16x16x16, wave32. With k taken in the order 8 (l / 16) + e for both operands:
//   operand A[i][k], B[k][j]: i, j = l % 16, k = 8 (l / 16) + e (8 elements)
//                                                                                accumulator
//                                                                                D[i][j]: i = 8
//                                                                                (l / 16) + e,
//                                                                                j = l %
//   16
// Scores are K Q^T: a lane owns one query row and 8 neighbouring keys, just what the product V^T
// P^T takes from it.
#pragma once

#include "core/base.h"
#include "targets/no_transposed_reads.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/gfx12/emulated.h"
#else
#include "targets/gfx12/instruction.h"
#endif

namespace fulmen::kernels {

constexpr bool kCopiesToLds = false;
constexpr bool kTransposedValues = true;
constexpr bool kAnyAlignment = true;
constexpr bool kFlushesSubnormals = false;
constexpr int kScoreTile = 16;
constexpr int kRowsPerLane = 1;
constexpr int kElements = 8;
FULMEN_DEVICE constexpr int row_slot(int /*e*/) { return 0; }
FULMEN_DEVICE int tile_row(int /*slot*/) { return lane_id() % 16; }
constexpr int kColumnRun = 8;
FULMEN_DEVICE int tile_column(int e) { return 8 * (lane_id() / 16) + e; }
FULMEN_DEVICE constexpr int block_sharer(bool /*rows_are_keys*/, int n) { return 1 << n; }
constexpr int kOutputRun = 8;
FULMEN_DEVICE int output_column(int e) { return tile_column(e); }
FULMEN_DEVICE float from_other_half(float x) { return bits_float(permlanex16(float_bits(x))); }
FULMEN_DEVICE float row_max(float x) { return larger(x, from_other_half(x)); }
FULMEN_DEVICE float row_sum(float x) { return x + from_other_half(x); }

constexpr int kMmaK = 16;
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
  wmma_f32_16x16x16<T>(scores, keys.piece[0], queries.piece[0]);
}

// int8 codes of kCodeMmaK dims.
constexpr int kCodeMmaK = kTileMmaK;
constexpr int kCodeWords = 2;
FULMEN_DEVICE int code_dim() { return 8 * (lane_id() / 16); }
FULMEN_DEVICE void multiply_codes(float (&sums)[kElements], const Words<kCodeWords>& keys,
                                  const Words<kCodeWords>& queries) {
  wmma_i32_16x16x16(sums, keys, queries);
}

// Codes of E4M3: the same lanes. D[i][j] of 16 rows of A and of B, in the order of kCodeDepth keys
// in which a lane has those of scores.
FULMEN_DEVICE void multiply_e4m3(float (&d)[kElements], const Words<kCodeWords>& a,
                                 const Words<kCodeWords>& b) {
  wmma_f32_16x16x16_fp8(d, a, b);
}
constexpr int kCodeDepth = 16;
FULMEN_DEVICE constexpr int code_key(int position) { return position; }

struct ProbabilityOperand {
  Words<4> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  return {
      {{pack_probabilities<T, kShifted>(p[0], p[1]), pack_probabilities<T, kShifted>(p[2], p[3]),
        pack_probabilities<T, kShifted>(p[4], p[5]), pack_probabilities<T, kShifted>(p[6], p[7])}}};
}
using ValuePiece = Words<4>;
struct ValueOperand {
  ValuePiece piece[1];
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  wmma_f32_16x16x16<T>(out, v.piece[0], p.words);
}

// V^T in LDS, [dim][position].
constexpr int kValueDepth = 16;
constexpr int kValuePieces = 1;
FULMEN_DEVICE int value_dim() { return lane_id() % 16; }
FULMEN_DEVICE int value_piece(int /*p*/) { return 8 * (lane_id() / 16); }
FULMEN_DEVICE constexpr int value_key(int position) { return position; }
FULMEN_DEVICE int value_position(int key) { return key; }

constexpr int kDirectDims = 16;
constexpr int kDirectElements = 8;
constexpr int kDirectKeys = 8;
FULMEN_DEVICE int direct_lane() { return lane_id() % 16; }
FULMEN_DEVICE int direct_key(int m) { return 8 * (lane_id() / 16) + m; }
FULMEN_DEVICE int direct_column(int e) { return tile_column(e); }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[4]) {
  wmma_f32_16x16x16<T>(out, Words<4>{{pairs[0], pairs[1], pairs[2], pairs[3]}}, p.words);
}

}  // namespace fulmen::kernels
