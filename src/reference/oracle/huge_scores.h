// Scores that a bias makes so large that fp32 tells few of them apart (docs/contract.md, "How
// correctness is judged").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reference/oracle/score_row.h"

namespace fulmen::reference {

// Where a row's largest score exceeds this, fp32 numbers are 1/32 apart: a row's scores are fp32
// numbers then in the oracle, too.
inline constexpr double kHugeScore = 0x1p18;
// Same-precision standard attention stores larger scores in fp32: fp16 has none beyond 65504, and
// bf16's are 8 apart.
inline constexpr float kLargestStoredScore = 1024;
// An LSE beyond this is not all that kernels take of a row with a bias of fp32's range: half of its
// ulp is 6e-5, or 4.9e-4 beside probabilities that are rounded to bf16.
inline double rounded_lse(const Problem& p) noexcept {
  return p.q.dtype == DType::bf16 ? 16384 : 1024;
}

// max: the largest score of a row.
inline bool is_huge_row(const Problem& p, double max) noexcept {
  return has_wide_bias(p) && std::isfinite(max) && std::fabs(max) > kHugeScore;
}

// The maximum of a row's softmax.
template <class Real>
struct RowMaximum {
  Real value = -HUGE_VAL;
  bool nan = false;  // among the scores, where it is larger than none

  bool attends_nothing() const noexcept { return value == -HUGE_VAL && !nan; }
  void include_sink(Real sink) noexcept {
    if (!(sink <= value)) value = sink;  // a NaN, too
  }
};

// The largest of the scores that the row attends.
template <class Real>
RowMaximum<Real> largest_score(const AttendedKeys& keys, const Real* scores) noexcept {
  RowMaximum<Real> max;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    max.nan = max.nan || std::isnan(scores[j]);
    if (scores[j] > max.value) max.value = scores[j];
  }
  return max;
}

// Rounds the scores of a huge row and their maximum to fp32; exact keeps the scores. Returns
// whether the row is huge.
template <class Real>
bool round_huge_row(const Problem& p, const AttendedKeys& keys, Real* scores, Real* exact,
                    RowMaximum<Real>& max) noexcept {
  if (!is_huge_row(p, max.value)) return false;
  std::copy(scores + keys.begin, scores + keys.end, exact + keys.begin);
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = static_cast<float>(scores[j]);
  max.value = static_cast<float>(max.value);
  return true;
}

inline float stored_score(DType storage, float score) noexcept {
  return std::fabs(score) > kLargestStoredScore ? score : round_to(storage, score);
}

// How far two evaluations of a huge score in fp32 may be apart. norms and product as in
// score_rounding().
inline double huge_score_error(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h,
                               int64_t i, int64_t j, double norms, double product,
                               double exact) noexcept {
  const auto nearest = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  double own = score_rounding(p, norms, product, 0, 0) + softcap_error(p);
  const double lower = nearest(exact - own), upper = nearest(exact + own);
  if (!(upper - lower < HUGE_VAL)) return own;
  double error = own + (upper - lower);
  if (p.bias.present && p.alibi_slopes.present) {  // two sums, each of which may round
    const double bias = load_float(t.bias.data, p.bias.dtype, offset_of(p.bias, b, h, i, j));
    const double ulp = std::fabs(exact) * 0x1p-23,
                 rest = std::fabs(exact - bias) + std::fabs(product) + own;
    if (rest > ulp / 8) error += ulp;
  }
  return error;
}

}  // namespace fulmen::reference
