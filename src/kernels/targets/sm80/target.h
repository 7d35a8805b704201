// NVIDIA from sm_80: mma.m16n8k16, ldmatrix, cp.async. Lane l, g = l / 4, c = l % 4:
//   A[i][k]: words (i = g, k = 2c..), (g + 8, 2c..), (g, 2c + 8..), (g + 8, 2c + 8..)
//   B[k][j]: words (k = 2c.., j = g), (2c + 8.., g)      accumulator D[i][j]: (g, 2c), (g, 2c + 1),
//                                                        (g + 8, 2c), (g + 8, 2c + 1)
// Scores are Q K^T, two instructions for 16 keys: the accumulators are the A operand of P V.
// Operands of q.k cover 32 dims by two steps, so that a lane reads 16 bytes: the order of dims is
// free where both operands share it.
#pragma once

#include "core/base.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/sm80/emulated.h"
#else
#include "targets/sm80/instruction.h"
#endif

namespace fulmen::kernels {

constexpr bool kCopiesToLds = true;
constexpr bool kTransposedValues = false;
constexpr bool kReadsTransposed = false;
constexpr bool kAnyAlignment = false;
constexpr bool kFlushesSubnormals = false;
constexpr int kScoreTile = 16;
constexpr int kRowsPerLane = 2;
constexpr int kElements = 8;
FULMEN_DEVICE constexpr int row_slot(int e) { return e / 2 % 2; }
FULMEN_DEVICE int tile_row(int slot) { return lane_id() / 4 + 8 * slot; }
constexpr int kColumnRun = 2;
FULMEN_DEVICE int tile_column(int e) { return 8 * (e / 4) + 2 * (lane_id() % 4) + e % 2; }
FULMEN_DEVICE constexpr int block_sharer(bool rows_are_keys, int n) {
  return n == 0 ? (rows_are_keys ? 4 : 1) : (rows_are_keys ? 8 : 4);
}
constexpr int kOutputRun = 2;
FULMEN_DEVICE int output_column(int e) { return tile_column(e); }
FULMEN_DEVICE float row_max(float x) {
  x = larger(x, shuffle_xor(x, 1));
  return larger(x, shuffle_xor(x, 2));
}
FULMEN_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// Outputs of one row, two lanes' put together: 4 neighbours from paired_column() on.
FULMEN_DEVICE int paired_column() { return lane_id() % 4 / 2 * 4 + lane_id() % 2 * 8; }
template <class T>
FULMEN_DEVICE Words<2> paired_outputs(const float (&tile)[kElements], int slot, float factor) {
  const unsigned low = pack<T>(tile[2 * slot] * factor, tile[2 * slot + 1] * factor);
  const unsigned high = pack<T>(tile[2 * slot + 4] * factor, tile[2 * slot + 5] * factor);
  const bool odd = lane_id() % 2 != 0;
  const unsigned other = shuffle_xor(odd ? low : high, 1);
  return {{odd ? other : low, odd ? high : other}};
}
// A tile's diagonal: of a lane's row, in all lanes that share it.
FULMEN_DEVICE float tile_diagonal(const float (&tile)[kElements], int slot) {
  const int row = lane_id() / 4;
  const float two = row % 2 != 0 ? tile[6 * slot + 1] : tile[6 * slot];
  return row_sum(row / 2 == lane_id() % 4 ? two : 0.0F);
}

constexpr int kMmaK = 32;
constexpr int kPieces = 2;
FULMEN_DEVICE int piece_row(int p) { return lane_id() / 4 + 8 * p; }
FULMEN_DEVICE int piece_dim(int /*p*/) { return 8 * (lane_id() % 4); }
struct RowOperand {
  Words<4> piece[kPieces];
};

// One half of a tile's columns.
template <class T>
FULMEN_DEVICE void multiply_half(float (&tile)[kElements], int half, const Words<4>& a, unsigned b0,
                                 unsigned b1) {
  float d[4] = {tile[4 * half], tile[4 * half + 1], tile[4 * half + 2], tile[4 * half + 3]};
  mma_f32_16x8x16<T>(d, a, Words<2>{{b0, b1}});
#pragma unroll
  for (int e = 0; e < 4; ++e) tile[4 * half + e] = d[e];
}
template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const RowOperand& keys,
                                   const RowOperand& queries) {
  const Words<4>& low = queries.piece[0];
  const Words<4>& high = queries.piece[1];
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const Words<4> q{
        {low.word[2 * step], high.word[2 * step], low.word[2 * step + 1], high.word[2 * step + 1]}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply_half<T>(scores, half, q, keys.piece[half].word[2 * step],
                       keys.piece[half].word[2 * step + 1]);
    }
  }
}

// The same from LDS by ldmatrix, 16 dims each, in the registers that the instruction wants: nothing
// is moved before it.
constexpr int kTileMmaK = 16;
struct QueryOperand {
  Words<4> words;
};
struct KeyOperand {
  Words<4> words;  // of keys 0 to 7: both words of B; then of keys 8 to 15
};
FULMEN_DEVICE QueryOperand lds_query_operand(int at, int pitch, unsigned lane = lane_id()) {
  return {ldmatrix_x4(at + lane % 16 * pitch + lane / 16 * 16)};
}
FULMEN_DEVICE KeyOperand lds_key_operand(int at, int pitch, unsigned lane = lane_id()) {
  return {ldmatrix_x4(at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16)};
}
template <class T>
FULMEN_DEVICE void multiply_scores(float (&scores)[kElements], const KeyOperand& keys,
                                   const QueryOperand& queries) {
  multiply_half<T>(scores, 0, queries.words, keys.words.word[0], keys.words.word[1]);
  multiply_half<T>(scores, 1, queries.words, keys.words.word[2], keys.words.word[3]);
}

// Codes of 8 bits: in the 32 bytes of a row in LDS that kTileMmaK elements take, and the same
// words.
constexpr int kCodeMmaK = 32;
template <bool kE4m3>
FULMEN_DEVICE void multiply_bytes(float (&sums)[kElements], const Words<4>& columns,
                                  const Words<4>& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float d[4] = {sums[4 * half], sums[4 * half + 1], sums[4 * half + 2], sums[4 * half + 3]};
    const Words<2> b{{columns.word[2 * half], columns.word[2 * half + 1]}};
    if constexpr (kE4m3) {
      mma_f32_16x8x32_e4m3(d, rows, b);
    } else {
      mma_s32_16x8x32(d, rows, b);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[4 * half + e] = d[e];
  }
}
// int8 codes of kCodeMmaK dims.
FULMEN_DEVICE void multiply_codes(float (&sums)[kElements], const Words<4>& keys,
                                  const Words<4>& queries) {
  multiply_bytes<false>(sums, keys, queries);
}
// Codes of E4M3 (chips from sm_89 on): of kCodeMmaK dims, or of kCodeDepth keys.
FULMEN_DEVICE void multiply_e4m3(float (&sums)[kElements], const Words<4>& columns,
                                 const Words<4>& rows) {
  multiply_bytes<true>(sums, columns, rows);
}

// The order of kCodeDepth keys of transposed values in 8 bits: a lane's four neighbours in the A
// operand of a product are the keys that it has of an accumulator, of 16 keys each.
constexpr int kCodeDepth = 32;
FULMEN_DEVICE constexpr int code_key(int position) {
  return position / 16 * 16 + position % 4 / 2 * 8 + position % 16 / 4 * 2 + position % 2;
}

constexpr int kValueDepth = 16;
struct ProbabilityOperand {
  Words<4> words;
};
template <class T, bool kShifted = false>
FULMEN_DEVICE ProbabilityOperand to_operand(const float (&p)[kElements]) {
  return {
      {{pack_probabilities<T, kShifted>(p[0], p[1]), pack_probabilities<T, kShifted>(p[2], p[3]),
        pack_probabilities<T, kShifted>(p[4], p[5]), pack_probabilities<T, kShifted>(p[6], p[7])}}};
}
// The same in LDS, [row][column], by 16-byte pieces in different banks: to there, and from there;
// or with the columns as rows.
FULMEN_DEVICE void lds_store_operand(int at, int pitch, const ProbabilityOperand& p,
                                     unsigned lane = lane_id()) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    lds_store(at + lane / 4 * pitch + 4 * (lane % 4) + (8 * (w % 2) * pitch + 16 * (w / 2)),
              p.words.word[w]);
  }
}
FULMEN_DEVICE ProbabilityOperand lds_probability_operand(int at, int pitch,
                                                         unsigned lane = lane_id()) {
  return {lds_query_operand(at, pitch, lane).words};
}
FULMEN_DEVICE ProbabilityOperand lds_transposed_operand(int at, int pitch,
                                                        unsigned lane = lane_id()) {
  return {ldmatrix_x4_trans(at + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16)};
}
struct ValueOperand {
  Words<4> words;  // of dims 0 to 7: both words of B; then of dims 8 to 15
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityOperand& p,
                                   const ValueOperand& v) {
  multiply_half<T>(out, 0, p.words, v.words.word[0], v.words.word[1]);
  multiply_half<T>(out, 1, p.words, v.words.word[2], v.words.word[3]);
}

constexpr int kDirectDims = 8;
constexpr int kDirectElements = 4;
constexpr int kDirectKeys = 4;
FULMEN_DEVICE int direct_lane() { return lane_id() / 4; }
FULMEN_DEVICE int direct_key(int m) { return 8 * (m / 2) + 2 * (lane_id() % 4) + m % 2; }
FULMEN_DEVICE int direct_column(int e) { return 2 * (lane_id() % 4) + e % 2; }
template <class T>
FULMEN_DEVICE void multiply_direct(float (&out)[kDirectElements], const ProbabilityOperand& p,
                                   const unsigned (&pairs)[2]) {
  mma_f32_16x8x16<T>(out, p.words, Words<2>{{pairs[0], pairs[1]}});
}

}  // namespace fulmen::kernels
