// What kernels' roundings may do to gradients: the squares of docs/contract.md, "How correctness is
// judged". In double alone.
#include <algorithm>
#include <cmath>

#include "reference/oracle/backward_rows.h"
#include "reference/oracle/huge_scores.h"
#include "reference/row_loops.h"

namespace fulmen::reference {
namespace {

double square(double x) noexcept { return x * x; }

double norm(const std::vector<double>& row) noexcept {
  double squares = 0;
  for (const double x : row) squares += x * x;
  return std::sqrt(squares);
}

// Norms of the columns of a [dim, columns] matrix.
void column_norms(const std::vector<double>& matrix, int64_t dim, int64_t columns,
                  std::vector<double>& to) noexcept {
  std::fill(to.begin(), to.end(), 0.0);
  for (int64_t d = 0; d < dim; ++d) {
    const double* row = matrix.data() + d * columns;
    for (int64_t j = 0; j < columns; ++j) to[static_cast<std::size_t>(j)] += row[j] * row[j];
  }
  for (double& one : to) one = std::sqrt(one);
}

}  // namespace

template <>
void BackwardHead<double>::measure_head() noexcept {
  const Problem& p = view_.problem;
  column_norms(k_columns_, p.head_dim, p.seqlen_k, k_norms_);
  column_norms(v_columns_, p.head_dim_v, p.seqlen_k, v_norms_);
}

template <>
double BackwardHead<double>::stored_out_squares(const AttendedKeys& keys) const noexcept {
  double squares = 0;
  for (int64_t d = 0; d < view_.problem.head_dim_v; ++d) {
    squares +=
        square(dout_[static_cast<std::size_t>(d)] * half_ulp(view_.problem.dtype, out(keys, d)));
  }
  return squares;
}

template <>
double BackwardHead<double>::add_roundings(int64_t h, int64_t i, const AttendedKeys& keys,
                                           const RowDropout& dropout, const Softmax& softmax,
                                           double delta) noexcept {
  const Problem& problem = view_.problem;
  const double max = softmax.max, sum = softmax.sum, sink_weight = softmax.sink_weight;
  const double unit = probability_unit(problem.dtype),
               least = least_probability_error(problem.dtype);
  const double *p = probabilities_.data(), *dp = dprobabilities_.data();
  const double q_norm = norm(q_), dout_norm = norm(dout_),
               scale = std::fabs(static_cast<double>(problem.softmax_scale));
  const auto count = static_cast<double>(keys.end - keys.begin);
  const auto queries = static_cast<double>(problem.seqlen_q * problem.group_size());
  const double u = kUnitOfFloat, dot = u * std::sqrt(static_cast<double>(problem.head_dim_v));
  const auto score_error = [&](int64_t j, double score) -> double {
    const auto at = static_cast<std::size_t>(j);
    const double norms = q_norm * k_norms_[at];
    if (!huge_) {
      return std::fmax(1, std::fabs(functions_.slope(j))) *
             score_rounding(problem, norms, products_[at], score, max);
    }
    // No probability exceeds 1, whatever its score.
    return std::fmin(huge_score_error(problem, view_.tensors, batch_, h, i, j, norms, products_[at],
                                      other_scores_[at]),
                     1 / p[j]);
  };
  const double lse = max + std::log(sum);
  const double lse_size =
      has_wide_bias(problem) ? std::fmin(std::fabs(lse), rounded_lse(problem)) : std::fabs(lse);
  double of_lse = u * (kRoundingsOfAScore * lse_size + kRoundingsOfAProbability + count / 2);
  double of_delta = stored_out_squares(keys) + square(dot * dout_norm * std::fabs(delta));
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!(p[j] > 0)) continue;
    const double of_score = score_error(j, scores_[static_cast<std::size_t>(j)]);
    of_lse += p[j] * of_score;
    of_delta += square((unit * p[j] + least) * dp[j]) + square(p[j] * of_score * (dp[j] - delta));
  }
  const double common = std::sqrt(of_delta);
  of_delta_ = common;
  of_lse_ = of_lse;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!(p[j] > 0)) continue;
    const auto at = static_cast<std::size_t>(j);
    const double of_score = score_error(j, scores_[at]) + kRoundingsOfAProbability * u;
    const double dscore = p[j] * (dp[j] - delta), by_function = functions_.slope(j),
                 factor = std::fabs(softcap_slope_[at] * by_function) * scale,
                 dx = std::fabs(dscore) * factor;
    const double of_dp = dot * dout_norm * v_norms_[at] * dropout.factor(j) +
                         kRoundingsOfAProbability * u * std::fabs(dp[j]);
    const double own = square(p[j] * of_dp) + square(of_score * dscore);
    own_squares_[at] = own;
    dscores_squares_[at] = own + square(p[j] * common) + square(of_lse * dscore);
    const double rounded_dx = unit * dx + least * std::fmax(1.0, scale);
    const double for_dq = own * square(factor) + square(rounded_dx + u * count * dx / 2);
    const double for_dk =
        dscores_squares_[at] * square(factor) + square(rounded_dx + u * queries * dx / 2);
    dscores_squares_[at] *= square(by_function);
    const double weight = weights_[at];
    const double for_dv = weight == 0
                              ? 0
                              : square(weight * (of_score + of_lse + unit + u * queries / 2) +
                                       least * dropout.factor(j));
    const double* k = k_.data() + j * problem.head_dim;
    double* dk = dk_squares_.data() + j * problem.head_dim;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      const auto column = static_cast<std::size_t>(d);
      dq_squares_[column] += for_dq * k[d] * k[d];
      dq_common_[column] += p[j] * factor * k[d];
      dk[d] += for_dk * q_[column] * q_[column];
    }
    double* dv = dv_squares_.data() + j * problem.head_dim_v;
    for (int64_t d = 0; d < problem.head_dim_v; ++d)
      dv[d] += for_dv * square(dout_[static_cast<std::size_t>(d)]);
    add_scaled(dq_lse_.data(), k, dscore * by_function * softcap_slope_[at] * problem.softmax_scale,
               problem.head_dim);
  }
  for (std::size_t d = 0; d < dq_squares_.size(); ++d)
    dq_squares_[d] += square(common * dq_common_[d]) + square(of_lse * dq_lse_[d]);
  const double sink = sink_weight / sum;
  return square(sink * common) +
         square(sink * delta * (of_lse + kRoundingsOfAProbability * u + u * queries / 2));
}

}  // namespace fulmen::reference
