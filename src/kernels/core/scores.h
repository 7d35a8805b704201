// What happens to q.k before the softmax: scale, softcap, bias, ALiBi, masks (docs/contract.md has
// the formulas), in the units of kUnitsOfScore.
#pragma once

#include "core/score_functions.h"
#include "core/sequence.h"

namespace fulmen::kernels {

// tanh by exponentials: within 1e-6 absolute, and exactly +-1 for large inputs.
FULMEN_DEVICE float tanh_by_exp2(float x) {
  const float magnitude = absolute(x);
  // Below 0.04 the quotient would cancel: x - x^3 / 3 + 2 x^5 / 15.
  const float square = x * x;
  const float small = evaluated(magnitude * (1.0F + square * (-1.0F / 3 + square * (2.0F / 15))));
  const float e = exp2(-2 * kLog2E * magnitude);
  const float large = evaluated((1.0F - e) * reciprocal(1.0F + e));
  return copy_sign(magnitude < 0.04F ? small : large, x);
}

FULMEN_DEVICE Int64 mask_plane(const ForwardArguments& a, Int64 batch, Int64 head) {
  return batch * a.mask_bits.batch_planes + head * a.mask_bits.head_planes;
}
// The first query's bits.
FULMEN_DEVICE const unsigned* mask_rows(const ForwardArguments& a, Int64 batch, Int64 head) {
  return a.mask_bits.by_query + mask_plane(a, batch, head) * a.mask_bits.rows * a.mask_bits.words;
}

// Query i's.
FULMEN_DEVICE const unsigned* mask_row(const ForwardArguments& a, Int64 batch, Int64 head,
                                       Int64 i) {
  return mask_rows(a, batch, head) + (a.mask_bits.rows == 1 ? 0 : i) * a.mask_bits.words;
}
// Key j's bit of a word that has it.
FULMEN_DEVICE bool has_key(unsigned word, Int64 j) {
  return (word >> (static_cast<unsigned>(j) % 32) & 1U) != 0;
}
// Bits [begin, end) of a word, where both may lie outside.
FULMEN_DEVICE unsigned bit_range(int begin, int end) {
  const auto below = [](int n) {
    return n <= 0 ? 0U : n >= 32 ? ~0U : (1U << static_cast<unsigned>(n)) - 1;
  };
  return below(end) & ~below(begin);
}
// The bit of query i and key j.
FULMEN_DEVICE bool mask_bit(const ForwardArguments& a, Int64 batch, Int64 head, Int64 i, Int64 j) {
  return has_key(global_load(mask_row(a, batch, head, i) + j / 32), j);
}

// What modifies the scores of one query row.
struct ScoreRow {
  const BiasElement* bias;         // of key 0
  const unsigned char* keep_mask;  // of key 0
  const unsigned* mask_words;      // kMaskBits: the row's
  int batch, head, query;          // kScoreMod
  float slope;                     // ALiBi, in the scores' units
  Int64 diagonal;                  // key index of this row's diagonal: i + offset

  FULMEN_DEVICE static ScoreRow of(const ForwardArguments& a, Int64 batch, Int64 head, Int64 i) {
    ScoreRow r{};
    if constexpr (kBias) r.bias = at<BiasElement>(a.bias, batch, i, head);
    if constexpr (kMaskBytes) r.keep_mask = at<unsigned char>(a.keep_mask, batch, i, head);
    if constexpr (kMaskBits) r.mask_words = mask_row(a, batch, head, i);
    if constexpr (kScoreMod) {
      r.batch = static_cast<int>(batch);
      r.head = static_cast<int>(head);
      r.query = static_cast<int>(i);
    }
    if constexpr (kAlibi)
      r.slope = kUnitsOfScore * global_load(a.alibi_slopes + batch * a.alibi_batch + head);
    r.diagonal = i + a.diagonal;
    return r;
  }

  // Becomes that of n rows further on: cheaper than of(), where n is the same in all lanes.
  FULMEN_DEVICE void advance(const ForwardArguments& a, int n) {
    if constexpr (kBias) bias += n * a.bias.row;
    if constexpr (kMaskBytes) keep_mask += n * a.keep_mask.row;
    if constexpr (kMaskBits) mask_words += a.mask_bits.rows == 1 ? 0 : n * a.mask_bits.words;
    if constexpr (kScoreMod) query += n;
    diagonal += n;
  }

  // Returns true if the mask lets the row attend key j.
  FULMEN_DEVICE bool keeps(Int64 j) const {
    if constexpr (kMaskBits) return has_key(global_load(mask_words + j / 32), j);
    if constexpr (kMaskBytes) return global_load(keep_mask + j) != 0;
    return true;
  }

  // The score of key j. scaled_bias: in the same units; distance: of the key from the diagonal.
  FULMEN_DEVICE float finish(const ForwardArguments& a, float dot, float scaled_bias, int distance,
                             Int64 j) const {
    float score = dot * a.scale;
    if constexpr (kSoftcap) score = a.softcap * tanh_by_exp2(score);
    if constexpr (kBias) score += scaled_bias;
    if constexpr (kAlibi) score -= slope * absolute(static_cast<float>(distance));
    if constexpr (kScoreMod) score = score_mod(a, {score, batch, head, query, static_cast<int>(j)});
    return score;
  }
  // The distance of key j from the diagonal, clamped: lengths where it is no int have no finite
  // ALiBi anyway.
  FULMEN_DEVICE int distance(Int64 j) const {
    constexpr Int64 kMost = 1 << 30;
    return static_cast<int>(algorithm::Band::clamp(diagonal - j, -kMost, kMost));
  }
};

// Returns true if causal and window masks let query i attend key j. Keys beyond the end are masked.
FULMEN_DEVICE bool in_band(const ForwardArguments& a, Int64 i, Int64 j) {
  bool inside = j < a.seqlen_k;
  if constexpr (kBand) {
    const Int64 diagonal = i + a.diagonal;
    inside = inside && (a.window_left < 0 || j >= diagonal - a.window_left);
    inside = inside && (a.window_right < 0 || j <= diagonal + a.window_right);
  }
  return inside;
}

// Returns true if the keep-mask lets any of the rows attend key j, which is in some row's band. A
// key that no row attends must not be read as a number: it may be NaN. Usually the first row
// decides.
FULMEN_DEVICE bool any_row_keeps(const ForwardArguments& a, Int64 batch, Int64 head,
                                 Int64 row_begin, Int64 row_end, Int64 j) {
  if constexpr (!kKeepMask) return true;
  if (j >= a.seqlen_k) return false;
  if constexpr (kMaskBits) {  // of whole blocks of rows
    const MaskBits& bits = a.mask_bits;
    const Int64 blocks = mask_plane(a, batch, head) * bits.blocks;
    unsigned words = 0;
    for (Int64 n = bits.blocks == 1 ? 0 : row_begin / kMaskRows;
         n < bits.blocks && n * kMaskRows < row_end; ++n)
      words |= global_load(bits.any + (blocks + n) * bits.words + j / 32);
    return has_key(words, j);
  }
  if constexpr (kBand) {  // of the rows those whose band has the key
    const Int64 begin = j - a.diagonal - a.window_right, end = j - a.diagonal + a.window_left + 1;
    row_begin = a.window_right >= 0 && begin > row_begin ? begin : row_begin;
    row_end = a.window_left >= 0 && end < row_end ? end : row_end;
  }
  const auto* mask = at<unsigned char>(a.keep_mask, batch, row_begin, head) + j;
  int rows = static_cast<int>(row_end - row_begin);
  if (a.keep_mask.row == 0 && rows > 1) rows = 1;
  for (; rows > 0; --rows, mask += a.keep_mask.row) {
    if (global_load(mask) != 0) return true;
  }
  return false;
}

// A row's softmax state at its end: what to multiply its output with, dropout's 1 / (1 - p)
// included; and its log-sum-exp.
struct RowEnd {
  float output_factor;
  float lse;
};
// x; NaN in a sequence that was cut (sequence.h), where a row may have no key.
FULMEN_DEVICE float unless_cut(const ForwardArguments& a, float x) {
  if constexpr (kVariable) x += 0.0F * a.scale;
  return x;
}
FULMEN_DEVICE float log_sum(float max, float sum) {
  if constexpr (kNaturalUnits) return max + kLn2 * log2(sum);
  return kLn2 * (max + log2(sum));
}
FULMEN_DEVICE RowEnd end_row(const ForwardArguments& a, Int64 head, float max, float sum) {
  const float kept = kDropout ? a.dropout_scale : 1.0F;
  if constexpr (kSinks) {
    const float sink = kUnitsOfScore * global_load(a.sinks + head);
    const float with_sink = larger(max, sink);
    // Both -inf: nothing is attended and the sink weighs nothing.
    const float offset = with_sink == -kInfinity ? 0.0F : with_sink;
    const float rescale = exp2(kLog2OfUnit * (max - offset));
    const float total = sum * rescale + exp2(kLog2OfUnit * (sink - offset));
    return {unless_cut(a, total == 0 ? 0.0F : kept * rescale / total),
            unless_cut(a, total == 0 ? -kInfinity : log_sum(with_sink, total))};
  }
  if (max == -kInfinity && sum == 0) return {unless_cut(a, 0.0F), unless_cut(a, -kInfinity)};
  return {kept * reciprocal(sum), log_sum(max, sum)};
}

}  // namespace fulmen::kernels
