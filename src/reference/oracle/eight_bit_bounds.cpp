// What rounding to 8 bits may do to a row of the oracle: the last terms of R in docs/contract.md,
// "Products in 8 bits".
#include <algorithm>
#include <cmath>

#include "reference/oracle/oracle_rows.h"

namespace fulmen::reference {
namespace {

constexpr double kInt8Step = 1.0 / 127;        // of the largest number
constexpr double kUniform = 0.2887;            // the standard deviation of an error in one step
constexpr double kFp8Unit = 0x1p-4;            // unit roundoff of fp8_e4m3
constexpr double kFp8Deviation = 0.6;          // of a product of two, in such units
constexpr double kLeastProbability = 0x1p-16;  // half the least number where the largest is 64
constexpr double kLeastValue = 0x1p-14;        // below this share of the largest, v is subnormal
constexpr double kDeviations = 5;

}  // namespace

void OracleHead::add_eight_bits(const AttendedKeys& keys, const RowDropout& dropout, double q_norm,
                                const double* out, double* rounding, Bounds& bounds) noexcept {
  const Problem& p = view_.problem;
  const auto [h, i, max, sum] = last_;
  const bool fp8 = p.precision == Precision::fp8;
  const int64_t q_row = offset_of(p.q, batch_, i, h);
  const auto q = [&](int64_t d) {
    return static_cast<double>(load_float(view_.tensors.q.data, p.dtype, q_row + d));
  };
  // By std::max: std::fmax ends g++ 12 for ARM here (vect_transform_reduction).
  double largest_q = 0;
  for (int64_t d = 0; d < p.head_dim; ++d) largest_q = std::max(largest_q, std::fabs(q(d)));
  // The standard deviation of a score's error.
  const auto deviation = [&](int64_t j) {
    if (!fp8) {
      const double of_q = largest_q * k_norms_[static_cast<std::size_t>(j)],
                   of_k = k_range_ * q_norm;
      return kInt8Step * kUniform * std::sqrt(of_q * of_q + of_k * of_k);
    }
    double squares = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const double term = q(d) * k_[static_cast<std::size_t>(d * p.seqlen_k + j)];
      squares += term * term;
    }
    return kFp8Unit * kFp8Deviation * std::sqrt(squares);
  };
  std::vector<double>& squares = of_scores_;
  std::fill(squares.begin(), squares.end(), 0.0);
  double of_scores = 0, largest_error = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const double score = scores_[static_cast<std::size_t>(j)],
                 probability = std::exp(score - max) / sum,
                 weight = probability * dropout.factor(j),
                 error = std::fabs(p.softmax_scale * functions_.slope(j)) * deviation(j);
    largest_error = std::fmax(largest_error, error);
    of_scores += probability * error;
    const double* v = v_row(j);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      const double moved = weight * v[d] - probability * out[d];
      double own = 0;
      if (fp8) {
        own = kFp8Unit * weight * (std::fabs(v[d]) + kLeastValue * largest_v_);
        rounding[d] += std::fmin(probability, kLeastProbability / sum) *
                       std::fmax(std::fabs(v[d]), std::fabs(v[d] - out[d]));
      }
      squares[static_cast<std::size_t>(d)] += error * error * moved * moved + own * own;
    }
  }
  bounds.lse += kDeviations * of_scores;
  if (kDeviations * largest_error > kLinearError) {
    bounds.lse = std::fmax(bounds.lse, kDeviations * largest_error);
    take_any_weights(keys, dropout, out);
    for (int64_t d = 0; d < p.head_dim_v; ++d)
      rounding[d] += of_scores_[static_cast<std::size_t>(d)];
    return;
  }
  for (int64_t d = 0; d < p.head_dim_v; ++d)
    rounding[d] += kDeviations * std::sqrt(squares[static_cast<std::size_t>(d)]);
}

}  // namespace fulmen::reference
