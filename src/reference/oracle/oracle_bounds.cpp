// What kernels' roundings may do to a row of the oracle: the terms of R in docs/contract.md, "How
// correctness is judged", in its order.
#include <algorithm>
#include <cmath>

#include "reference/oracle/oracle_rows.h"

namespace fulmen::reference {
namespace {

// Differences of scores beyond this are no probability in fp32.
constexpr double kExponentialRange = 104;

// rows: [dim, count]. The largest distance of a number from the mean of its row. Those that are not
// finite are of masked keys.
double range_about_means(const std::vector<double>& rows, int64_t dim, int64_t count) noexcept {
  double range = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double* row = rows.data() + d * count;
    double sum = 0;
    int64_t finite = 0;
    for (int64_t j = 0; j < count; ++j) {
      if (!std::isfinite(row[j])) continue;
      sum += row[j];
      ++finite;
    }
    const double mean = finite == 0 ? 0 : sum / static_cast<double>(finite);
    for (int64_t j = 0; j < count; ++j) {
      if (std::isfinite(row[j])) range = std::fmax(range, std::fabs(row[j] - mean));
    }
  }
  return range;
}

}  // namespace

void OracleHead::measure_head() noexcept {
  const Problem& p = view_.problem;
  largest_v_ = 0;
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    double squares = 0, size = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const double k = k_[static_cast<std::size_t>(d * p.seqlen_k + j)];
      squares += k * k;
    }
    for (int64_t d = 0; d < p.head_dim_v; ++d) size = std::fmax(size, std::fabs(v_row(j)[d]));
    k_norms_[static_cast<std::size_t>(j)] = std::sqrt(squares);
    v_sizes_[static_cast<std::size_t>(j)] = size;
    largest_v_ = std::fmax(largest_v_, size);
  }
  if (p.precision == Precision::int8) k_range_ = range_about_means(k_, p.head_dim, p.seqlen_k);
  measured_ = true;
}

double OracleHead::score_error(int64_t j, double q_norm) const noexcept {
  const Problem& p = view_.problem;
  const auto at = static_cast<std::size_t>(j);
  const double norms = q_norm * k_norms_[at];
  if (!huge_) {
    return std::fmax(1, std::fabs(functions_.slope(j))) *
           score_rounding(p, norms, products_[at], scores_[at], last_.max);
  }
  return huge_score_error(p, view_.tensors, batch_, last_.h, last_.i, j, norms, products_[at],
                          exact_scores_[at]) +
         kRoundingsOfAScore * kUnitOfFloat * std::fmin(last_.max - scores_[at], kExponentialRange);
}

OracleHead::Bounds OracleHead::bounds(const double* out, double* rounding) noexcept {
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const auto [h, i, max, sum] = last_;
  std::fill_n(rounding, p.head_dim_v, 0.0);
  if (sum == 0) return {};
  if (!measured_) measure_head();
  const AttendedKeys keys = attended(h, i);
  const RowDropout dropout(p, t, batch_, h, i);

  double q_squares = 0;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    const double q = load_float(t.q.data, p.dtype, offset_of(p.q, batch_, i, h) + d);
    q_squares += q * q;
  }
  int64_t summed = 0;  // n
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (keys.contains(j) &&
        std::exp(scores_[static_cast<std::size_t>(j)] - max) > kUnitOfFloat * sum)
      ++summed;
  }
  const double q_norm = std::sqrt(q_squares);
  const double unit = probability_unit(p.dtype),
               least = least_probability_error(p.dtype) / sum;  // u, t
  const double sums = kUnitOfFloat * (kRoundingsOfAProbability + 0.5 * static_cast<double>(summed));
  Bounds bounds{.lse = sums + kRoundingsOfAScore * kUnitOfFloat * std::fabs(max + std::log(sum))};
  bool any_weights = false;  // errors of scores may change who has the largest
  double largest_error = 0;
  std::fill(of_scores_.begin(), of_scores_.end(), 0.0);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const double score = scores_[static_cast<std::size_t>(j)], exponential = std::exp(score - max),
                 factor = dropout.factor(j);
    const double of_score = score_error(j, q_norm);
    bounds.magnitude += exponential * factor * v_sizes_[static_cast<std::size_t>(j)];
    if (of_score > kLinearError && score + of_score > max - kExponentialRange) {
      any_weights = true;
      largest_error = std::fmax(largest_error, of_score);
    }
    const double probability = exponential / sum;
    if (!(probability > 0)) continue;
    bounds.lse += probability * of_score;
    const double weight = probability * factor, relative = unit + sums + least / probability;
    const double* v = v_row(j);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      const double value = weight * v[d], moved = std::fabs(value - probability * out[d]);
      of_scores_[static_cast<std::size_t>(d)] += of_score * moved;
      rounding[d] += relative * std::fmax(moved, std::fabs(value));
    }
  }
  bounds.magnitude /= sum;
  if (any_weights) {
    bounds.lse = std::fmax(bounds.lse, largest_error);
    take_any_weights(keys, dropout, out);
  }
  for (int64_t d = 0; d < p.head_dim_v; ++d) rounding[d] += of_scores_[static_cast<std::size_t>(d)];
  if (p.precision != Precision::exact) add_eight_bits(keys, dropout, q_norm, out, rounding, bounds);
  return bounds;
}

void OracleHead::take_any_weights(const AttendedKeys& keys, const RowDropout& dropout,
                                  const double* out) noexcept {
  std::fill(of_scores_.begin(), of_scores_.end(), 0.0);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j) || scores_[static_cast<std::size_t>(j)] == -HUGE_VAL) continue;
    const double factor = dropout.factor(j);
    for (int64_t d = 0; d < view_.problem.head_dim_v; ++d) {
      double& most = of_scores_[static_cast<std::size_t>(d)];
      most = std::fmax(most, std::fabs(factor * v_row(j)[d] - out[d]));
    }
  }
}

}  // namespace fulmen::reference
