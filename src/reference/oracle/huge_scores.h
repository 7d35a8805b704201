// Scores that a bias makes so large that fp32 tells few of them apart (docs/contract.md, "How correctness is judged").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reference/oracle/score_row.h"

namespace fulmen::reference {

// Where a row's largest score exceeds this, fp32 numbers are 1/32 apart: a row's scores are fp32 numbers then in the oracle, too.
inline constexpr double kHugeScore = 0x1p18;
// Same-precision standard attention stores larger scores in fp32: fp16 has none beyond 65504, and bf16's are 8 apart.
inline constexpr float kLargestStoredScore = 1024;
// An LSE beyond this, half of whose ulp is 6e-5, is not all that kernels take of a row with a bias of fp32's range.
inline constexpr double kRoundedLse = 1024;

// max: the largest score of a row.
inline bool is_huge_row(const Problem& p, double max) noexcept {
  return has_wide_bias(p) && std::isfinite(max) && std::fabs(max) > kHugeScore;
}

inline float stored_score(DType storage, float score) noexcept {
  return std::fabs(score) > kLargestStoredScore ? score : round_to(storage, score);
}

// How far two evaluations of a huge score in fp32 may be apart. norms and product as in score_rounding().
inline double huge_score_error(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t i, int64_t j,
                               double norms, double product, double exact) noexcept {
  const auto nearest = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  double own = score_rounding(p, norms, product, 0, 0) + (p.softcap > 0 ? kSoftcapError : 0);
  const double lower = nearest(exact - own), upper = nearest(exact + own);
  if (!(upper - lower < HUGE_VAL)) return own;
  double error = own + (upper - lower);
  if (p.bias.present && p.alibi_slopes.present) {  // two sums, each of which may round
    const double bias = load_float(t.bias.data, p.bias.dtype, offset_of(p.bias, b, h, i, j));
    const double ulp = std::fabs(exact) * 0x1p-23, rest = std::fabs(exact - bias) + std::fabs(product) + own;
    if (rest > ulp / 8) error += ulp;
  }
  return error;
}

}  // namespace fulmen::reference
