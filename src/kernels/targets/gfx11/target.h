// RDNA3 and RDNA3.5: v_wmma_f32_16x16x16, wave32. Lanes l and l + 16 hold the same operands.
//   operand A[i][k], B[k][j]: i, j = l % 16, k = element (16 of them, or 16 codes of int8)
//                                                                         accumulator D[i][j]:
//                                                                         i = 2 e + l / 16,
//                                                                         j = l % 16
// Scores are K Q^T, so that a lane owns one query row and every second key; outputs are V^T P^T.
#pragma once

#include "core/base.h"
#include "targets/no_transposed_reads.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/gfx11/emulated.h"
#else
#include "targets/gfx11/instruction.h"
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
constexpr int kColumnRun = 1;
FULMEN_DEVICE int tile_column(int e) { return 2 * e + lane_id() / 16; }
FULMEN_DEVICE constexpr int block_sharer(bool rows_are_keys, int n) {
  return n == 0 ? 1 : n == 1 ? (rows_are_keys ? 2 : 16) : 16;
}
// The order of dims among the rows of V^T is free (value_dim() below): a lane's outputs are
// neighbours.
constexpr int kOutputRun = 8;
FULMEN_DEVICE int output_column(int e) { return 8 * (lane_id() / 16) + e; }
FULMEN_DEVICE float from_other_half(float x) { return bits_float(permlanex16(float_bits(x))); }
FULMEN_DEVICE float row_max(float x) { return larger(x, from_other_half(x)); }
FULMEN_DEVICE float row_sum(float x) { return x + from_other_half(x); }

constexpr int kMmaK = 16;
constexpr int kPieces = 2;
FULMEN_DEVICE int piece_row(int /*p*/) { return lane_id() % 16; }
FULMEN_DEVICE int piece_dim(int p) { return 8 * p; }
struct RowOperand {
  Words<4> piece[kPieces];
};
// What tiles in LDS are read as: the same.
constexpr int kTileMmaK = kMmaK;
using QueryOperand = RowOperand;
using KeyOperand = RowOperand;
FULMEN_DEVICE Words<8> whole(const RowOperand& x) {
  return {{x.piece[0].word[0], x.piece[0].word[1], x.piece[0].word[2], x.piece[0].word[3],
           x.piece[1].word[0], x.piece[1].word[1], x.piece[1].word[2], x.piece[1].word[3]}};
}
template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
  wmma_f32_16x16x16<T>(scores, whole(keys), whole(queries));
}

// int8 codes of kCodeMmaK dims.
constexpr int kCodeMmaK = kTileMmaK;
constexpr int kCodeWords = 4;
FULMEN_DEVICE int code_dim() { return 0; }
FULMEN_DEVICE void multiply_codes(float (&sums)[kElements], const Words<kCodeWords>& keys,
                                  const Words<kCodeWords>& queries) {
  wmma_i32_16x16x16(sums, keys, queries);
}

// The even keys, then the odd ones: what a lane has itself, and what its other half has, by four
// exchanges.
struct ProbabilityOperand {
  Words<8> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  ProbabilityOperand operand;
  const bool low_half = lane_id() < 16;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const unsigned mine = pack_probabilities<T, kShifted>(p[2 * m], p[2 * m + 1]);
    const unsigned other = permlanex16(mine);
    operand.words.word[m] = low_half ? mine : other;
    operand.words.word[m + 4] = low_half ? other : mine;
  }
  return operand;
}
using ValuePiece = Words<4>;
struct ValueOperand {
  ValuePiece piece[2];
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  wmma_f32_16x16x16<T>(
      out,
      Words<8>{{v.piece[0].word[0], v.piece[0].word[1], v.piece[0].word[2], v.piece[0].word[3],
                v.piece[1].word[0], v.piece[1].word[1], v.piece[1].word[2], v.piece[1].word[3]}},
      p.words);
}

// V^T in LDS, [dim][position]: of kValueDepth keys a lane reads 16-byte pieces from position
// value_piece(p) of row value_dim().
constexpr int kValueDepth = 16;
constexpr int kValuePieces = 2;
FULMEN_DEVICE int value_dim() { return lane_id() % 2 * 8 + lane_id() % 16 / 2; }
FULMEN_DEVICE int value_piece(int p) { return 8 * p; }
// The key at a position.
FULMEN_DEVICE constexpr int value_key(int position) { return position % 8 * 2 + position / 8; }
FULMEN_DEVICE int value_position(int key) { return key / 2 + key % 2 * 8; }

constexpr int kDirectDims = 16;
constexpr int kDirectElements = 8;
constexpr int kDirectKeys = 16;
FULMEN_DEVICE int direct_lane() { return lane_id() % 16; }
FULMEN_DEVICE int direct_key(int m) { return value_key(m); }
FULMEN_DEVICE int direct_column(int e) { return 2 * e + lane_id() / 16; }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[8]) {
  wmma_f32_16x16x16<T>(
      out,
      Words<8>{{pairs[0], pairs[1], pairs[2], pairs[3], pairs[4], pairs[5], pairs[6], pairs[7]}},
      p.words);
}

}  // namespace fulmen::kernels

#include "targets/no_e4m3.h"
