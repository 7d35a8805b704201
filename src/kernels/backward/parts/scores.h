// From q.k and dout.v of one (query, key) to the probability and the score's gradient
// (docs/contract.md has the formulas).
#pragma once

#include "core/dropout.h"
#include "core/row_statistics.h"
#include "core/scores.h"
#include "tile/mask_span.h"

namespace fulmen::kernels {

constexpr bool kGivesDq = (kConfig.outputs & 1) != 0;
constexpr bool kGivesDk = (kConfig.outputs & 2) != 0;
constexpr bool kGivesDv = (kConfig.outputs & 4) != 0;
constexpr bool kGivesDbias = (kConfig.outputs & 8) != 0;
constexpr bool kGivesTensors = (kConfig.outputs & 16) != 0;  // tensor_gradients.h
constexpr bool kStoresDbias = (kConfig.outputs & 32) != 0;   // beside others: stored_bias.h
// dk and dv: the tile's rows are keys, its columns queries. Else the other way round.
constexpr bool kRowsAreKeys = kGivesDk || kGivesDv;
constexpr bool kGivesFirst = kGivesDq || kGivesDk;  // by the columns' first tensor
// dout.v
constexpr bool kNeedsDout = kGivesDq || kGivesDk || kGivesDbias || kGivesTensors;
constexpr bool kAddsDq = kRowsAreKeys && kGivesDq;  // by atomics, beside dk or dv
// True if one launch of a kernel that goes over one side's rows can give all these outputs.
constexpr bool kGivesOneSide = kRowsAreKeys ? !kGivesDbias : kGivesDq || kGivesDbias;

// One head's two tensors of a side: q and dout, or k and v.
struct Side {
  const Element* first;
  const Element* second;
  Int64 first_stride, second_stride;

  FULMEN_DEVICE static Side queries(const BackwardArguments& a, Int64 batch, Int64 head) {
    return {at<Element>(a.q, batch, 0, head), at<Element>(a.dout, batch, 0, head), a.q.row,
            a.dout.row};
  }
  FULMEN_DEVICE static Side keys(const BackwardArguments& a, Int64 batch, Int64 kv_head) {
    return {at<Element>(a.k, batch, 0, kv_head), at<Element>(a.v, batch, 0, kv_head), a.k.row,
            a.v.row};
  }
};

// Which columns a row meets: queries see a band of keys, and keys the same band of queries from the
// other side.
FULMEN_DEVICE algorithm::Band column_band(const BackwardArguments& a) {
  return kRowsAreKeys ? algorithm::Band{a.seqlen_q, -a.diagonal, a.window_right, a.window_left}
                      : band_of(a);
}

// Columns that some of the rows [begin, end) of a head, or KV head, meet: from the first to the
// last.
FULMEN_DEVICE algorithm::KeyRange met_columns(const BackwardArguments& a,
                                              const algorithm::Band& band, Int64 batch,
                                              Int64 row_head, Int64 begin, Int64 end) {
  const algorithm::KeyRange columns = band.any(begin, end);
  if constexpr (!kRowsAreKeys) return keys_in_mask(a, batch, row_head, begin, end, columns);
  const Int64 head = row_head * a.group_size;
  return queries_in_mask(a, batch, head, head + a.group_size, begin, end, columns);
}

struct ScoreGradient {
  float weight;  // of v: the probability, after dropout
  float bias;    // by the score after bias and ALiBi
  float dot;     // by scale * q.k
};

// What modifies one score: where its bias and its mask are, ALiBi's slope (in the scores' units),
// the distance to the diagonal, the query's RowShares, and what score_mod is given.
struct ScoreInputs {
  const BiasElement* bias;
  const unsigned char* keep_mask;
  float slope;
  float distance;
  const float* share;
  ScoredPair pair;

  FULMEN_DEVICE static ScoreInputs of(const BackwardArguments& a, Int64 batch, Int64 head, Int64 i,
                                      Int64 j) {
    ScoreInputs s{};
    if constexpr (kBias) s.bias = at<BiasElement>(a.bias, batch, i, head) + j;
    if constexpr (kMaskBytes) s.keep_mask = at<unsigned char>(a.keep_mask, batch, i, head) + j;
    if constexpr (kAlibi) {
      s.slope = kUnitsOfScore * global_load(a.alibi_slopes + batch * a.alibi_batch + head);
      s.distance = static_cast<float>(i + a.diagonal - j);
    }
    if constexpr (kNaturalUnits) s.share = RowShares::first_of(a, batch, head) + i;
    if constexpr (kScoreMod) {
      s.pair = {0.0F, static_cast<int>(batch), static_cast<int>(head), static_cast<int>(i),
                static_cast<int>(j)};
    }
    return s;
  }
};

// With the bias and the mask's bytes still in memory: what they add, in the scores' units, and
// whether the query attends the key. `attended` says what the band, the ends and the mask's bits
// let it attend; the inputs are somewhere in memory also where it says no.
struct ScoreTerms {
  float bias, alibi;
  bool attended;
  ScoredPair pair;

  // kReadsBias: not where the caller sets the bias.
  template <bool kReadsBias = true>
  FULMEN_DEVICE static ScoreTerms of(const ScoreInputs& inputs, bool attended) {
    ScoreTerms terms{0, 0, attended, inputs.pair};
    // Read whether attended or not: a branch around each load would hold up all that follows.
    if constexpr (kMaskBytes)
      terms.attended = attended & (evaluated(static_cast<int>(global_load(inputs.keep_mask))) != 0);
    if constexpr (kBias && kReadsBias)
      terms.bias = evaluated(kUnitsOfScore * to_float(global_load(inputs.bias)));
    if constexpr (kAlibi) terms.alibi = inputs.slope * absolute(inputs.distance);
    return terms;
  }
};

// Derivatives of a score: of softcap by scale * q.k, and of score_mod by the score before it.
struct ScoreSlopes {
  float softcap = 1.0F, score_mod = 1.0F;
};

// The score that score_mod is given, in natural units. dot: q.k.
FULMEN_DEVICE float score_before_mod(const BackwardArguments& a, const ScoreTerms& terms, float dot,
                                     ScoreSlopes& slopes) {
  float score = dot * a.scale;
  if constexpr (kSoftcap) {
    const float tanh = tanh_by_exp2(score);
    slopes.softcap = 1.0F - tanh * tanh;
    score = a.softcap * tanh;
  }
  score += terms.bias;
  if constexpr (kAlibi) score -= terms.alibi;
  return score;
}
// A score as the forward pass had it, in natural units.
FULMEN_DEVICE float natural_score(const BackwardArguments& a, const ScoreTerms& terms, float dot,
                                  ScoreSlopes& slopes) {
  float score = score_before_mod(a, terms, dot, slopes);
  if constexpr (kScoreMod) {
    ScoredPair pair = terms.pair;
    pair.score = score;
    const ModifiedScore modified = score_gradient_mod(a, pair);
    slopes.score_mod = modified.by_score;
    score = modified.score;
  }
  return score;
}

// dot: q.k; offset: the query's.
FULMEN_DEVICE float probability_of(const BackwardArguments& a, const ScoreTerms& terms,
                                   float offset, float dot, ScoreSlopes& slopes) {
  if constexpr (kNaturalUnits)
    return exp2(kLog2E * (natural_score(a, terms, dot, slopes) - offset));
  float score = dot * a.scale - offset;
  if constexpr (kSoftcap) {
    const float tanh = tanh_by_exp2(dot * a.scale);
    slopes.softcap = 1.0F - tanh * tanh;
    score = a.softcap * tanh - offset;
  }
  if constexpr (kBias) score += terms.bias;
  if constexpr (kAlibi) score -= terms.alibi;
  return exp2(score);
}

// What has no probability adds nothing, whatever the derivative is. A NaN stays one.
FULMEN_DEVICE bool adds_nothing(float probability) { return probability < 0x1p-126F; }

// dprobability: dout.v; keeps(): whether dropout lets the probability stay; share: the query's, of
// RowShares, 1 where the result is multiplied with it later.
template <class Keeps>
FULMEN_DEVICE ScoreGradient score_gradient(const BackwardArguments& a, const ScoreTerms& terms,
                                           const RowStatistics& numbers, float dot,
                                           float dprobability, const Keeps& keeps, float share) {
  ScoreSlopes slopes;
  const float probability = share * probability_of(a, terms, numbers.offset, dot, slopes);
  float dropped = 1.0F;
  if constexpr (kDropout) dropped = keeps() ? a.dropout_scale : 0.0F;
  float gradient = probability * (dprobability * dropped - numbers.delta);
  if constexpr (kScoreMod) {
    const float product = gradient * slopes.score_mod;
    gradient = adds_nothing(probability) ? 0.0F : product;
  }
  if (!terms.attended) return {0, 0, 0};
  return {probability * dropped, gradient, gradient * slopes.softcap};
}
template <class Keeps>
FULMEN_DEVICE ScoreGradient score_gradient(const BackwardArguments& a, const ScoreInputs& inputs,
                                           const RowStatistics& numbers, float dot,
                                           float dprobability, bool attended, const Keeps& keeps,
                                           float share) {
  return score_gradient(a, ScoreTerms::of(inputs, attended), numbers, dot, dprobability, keeps,
                        share);
}
// Without the query's share.
FULMEN_DEVICE float probability_of(const BackwardArguments& a, const ScoreTerms& terms,
                                   float offset, float dot) {
  ScoreSlopes slopes;
  const float probability = probability_of(a, terms, offset, dot, slopes);
  return terms.attended ? probability : 0.0F;
}

}  // namespace fulmen::kernels
