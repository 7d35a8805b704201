#include "reference/oracle/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "reference/oracle/decode_rows.h"
#include "reference/oracle/huge_scores.h"
#include "reference/oracle/score_row.h"
#include "reference/row_loops.h"

namespace fulmen::reference {

template <class Real>
BackwardHead<Real>::BackwardHead(const Problem& problem, const AttentionTensors& tensors, DType storage, bool roundings)
    : all_(problem), all_tensors_(tensors), view_(sequence_view(problem, tensors)), storage_(storage), roundings_(roundings) {
  const auto keys = static_cast<std::size_t>(problem.seqlen_k);
  const auto dim = static_cast<std::size_t>(problem.head_dim), dim_v = static_cast<std::size_t>(problem.head_dim_v);
  for (std::vector<Real>* tensor : {&k_columns_, &k_, &dk_, &dk_squares_}) tensor->resize(keys * dim);
  for (std::vector<Real>* tensor : {&v_columns_, &dv_, &dv_squares_}) tensor->resize(keys * dim_v);
  for (std::vector<Real>* row : {&scores_, &probabilities_, &dprobabilities_, &softcap_slope_, &weights_, &other_scores_,
                                 &products_, &dscores_squares_, &k_norms_, &v_norms_})
    row->resize(keys);
  q_.resize(dim);
  dq_.resize(dim);
  dq_common_.resize(dim);
  dq_lse_.resize(dim);
  dq_squares_.resize(dim);
  dout_.resize(dim_v);
}

template <class Real>
Real BackwardHead<Real>::rounded(Real x) const noexcept {
  if constexpr (std::is_same_v<Real, float>) return round_to(storage_, x);
  return x;
}

template <class Real>
Real BackwardHead<Real>::stored(Real score) const noexcept {
  if constexpr (std::is_same_v<Real, float>) return stored_score(storage_, score);
  return score;
}

template <class Real>
void BackwardHead<Real>::load(int64_t batch, int64_t kv_head) noexcept {
  batch_ = batch;
  select_sequence(all_, all_tensors_, batch, view_);
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const KeyRows k_row(view_, p.k, batch, kv_head), v_row(view_, p.v, batch, kv_head);
  decode_transposed(t.k.data, p.kv_dtype, k_row, p.seqlen_k, p.head_dim, k_columns_.data());
  decode_transposed(t.v.data, p.kv_dtype, v_row, p.seqlen_k, p.head_dim_v, v_columns_.data());
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    decode_row(t.k.data, p.kv_dtype, k_row(j), p.head_dim, k_.data() + j * p.head_dim);
  }
  std::fill(dk_.begin(), dk_.end(), Real{0});
  std::fill(dk_squares_.begin(), dk_squares_.end(), Real{0});
  std::fill(dv_squares_.begin(), dv_squares_.end(), Real{0});
  std::fill(dv_.begin(), dv_.end(), Real{0});
  if (!roundings_) return;
  const auto norms = [&p](const std::vector<Real>& columns, int64_t dim, std::vector<Real>& to) {
    std::fill(to.begin(), to.end(), Real{0});
    for (int64_t d = 0; d < dim; ++d) {
      const Real* column = columns.data() + d * p.seqlen_k;
      for (int64_t j = 0; j < p.seqlen_k; ++j) to[static_cast<std::size_t>(j)] += column[j] * column[j];
    }
    for (Real& one : to) one = std::sqrt(one);
  };
  norms(k_columns_, p.head_dim, k_norms_);
  norms(v_columns_, p.head_dim_v, v_norms_);
}

template <class Real>
void BackwardHead<Real>::compute_scores(int64_t h, int64_t i, const AttendedKeys& keys, bool from_last, Real* to) noexcept {
  const Problem& problem = view_.problem;
  std::fill(to + keys.begin, to + keys.end, Real{0});
  for (int64_t n = 0; n < problem.head_dim; ++n) {
    const int64_t d = from_last ? problem.head_dim - 1 - n : n;
    add_scaled(to + keys.begin, k_columns_.data() + d * problem.seqlen_k + keys.begin, q_[static_cast<std::size_t>(d)],
               keys.end - keys.begin);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    to[j] = rounded(to[j] * problem.softmax_scale);
    products_[static_cast<std::size_t>(j)] = to[j];
    const Real tanh = problem.softcap > 0 ? std::tanh(to[j] / problem.softcap) : Real{0};
    softcap_slope_[static_cast<std::size_t>(j)] = 1 - tanh * tanh;
  }
  add_score_terms(problem, view_.tensors, batch_, h, i, keys, to, [this](Real x) { return stored(x); });
}

template <class Real>
std::optional<typename BackwardHead<Real>::Softmax> BackwardHead<Real>::compute_probabilities(int64_t h, int64_t i,
                                                                                              const AttendedKeys& keys) noexcept {
  constexpr Real kInfinity = HUGE_VAL;
  Real *scores = scores_.data(), *p = probabilities_.data();
  compute_scores(h, i, keys, false, scores);
  const Real sink = sink_of(view_.problem, view_.tensors, h);
  Real max = -kInfinity;
  bool nan = false;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    nan = nan || std::isnan(scores[j]);
    max = scores[j] > max ? scores[j] : max;
  }
  huge_ = is_huge_row(view_.problem, max);
  if (huge_) {
    std::copy(scores + keys.begin, scores + keys.end, other_scores_.data() + keys.begin);
    for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = static_cast<float>(scores[j]);
    max = static_cast<float>(max);
  }
  if (!(sink <= max)) max = sink;  // a NaN, too
  if (max == -kInfinity && !nan) return std::nullopt;

  const Real sink_weight = sink == -kInfinity ? Real{0} : std::exp(sink - max);
  Real sum = sink_weight;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    p[j] = keys.contains(j) ? std::exp(scores[j] - max) : Real{0};
    sum += p[j];
  }
  if constexpr (std::is_same_v<Real, float>) {
    // The forward pass stores lse by scores that it added up in an order of its own, so that what rounds the largest does not
    // cancel.
    if (storage_ == DType::fp32 && !(has_wide_bias(view_.problem) && std::fabs(max) > kRoundedLse)) {
      compute_scores(h, i, keys, true, other_scores_.data());
      sum = sink_weight;
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        if (keys.contains(j)) sum += std::exp(other_scores_[static_cast<std::size_t>(j)] - max);
      }
      const Real lse = max + std::log(sum);
      sum = std::exp(lse - max);
    }
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) p[j] = rounded(p[j] / sum);
  return Softmax{max, sum, sink_weight};
}

template <class Real>
Real BackwardHead<Real>::go_back_over_values(const AttendedKeys& keys, const RowDropout& dropout) noexcept {
  const Problem& problem = view_.problem;
  const Real* p = probabilities_.data();
  Real* dp = dprobabilities_.data();
  for (int64_t d = 0; d < problem.head_dim_v; ++d) {
    add_scaled(dp + keys.begin, v_columns_.data() + d * problem.seqlen_k + keys.begin, dout_[static_cast<std::size_t>(d)],
               keys.end - keys.begin);
  }
  Real delta = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) {
      dp[j] = weights_[static_cast<std::size_t>(j)] = 0;
      continue;
    }
    const Real kept = dropout.factor(j);
    dp[j] = rounded(rounded(dp[j]) * kept);
    delta += p[j] * dp[j];
    const Real weight = dropout.any() ? rounded(p[j] * kept) : p[j];
    weights_[static_cast<std::size_t>(j)] = weight;
    add_scaled(dv_.data() + j * problem.head_dim_v, dout_.data(), weight, problem.head_dim_v);
  }
  return delta;
}

template <class Real>
RowGradients<Real> BackwardHead<Real>::row(int64_t h, int64_t i) noexcept {
  const Problem& problem = view_.problem;
  const AttentionTensors& tensors = view_.tensors;
  const AttendedKeys keys(problem, tensors, batch_, h, i);
  Real *p = probabilities_.data(), *dp = dprobabilities_.data(), *slope = softcap_slope_.data();
  decode_row(tensors.q.data, problem.dtype, offset_of(problem.q, batch_, i, h), problem.head_dim, q_.data());
  decode_row(tensors.dout.data, problem.dtype, offset_of(problem.dout, batch_, i, h), problem.head_dim_v, dout_.data());
  for (std::vector<Real>* sum : {&dq_, &dq_common_, &dq_lse_, &dq_squares_, &dscores_squares_, &dprobabilities_}) {
    std::fill(sum->begin(), sum->end(), Real{0});
  }

  const std::optional<Softmax> softmax = compute_probabilities(h, i, keys);
  if (!softmax) return {dq_.data(), dp, 0, dq_squares_.data(), dscores_squares_.data(), 0};  // nothing is attended: no gradient
  const auto [max, sum, sink_weight] = *softmax;
  const RowDropout dropout(problem, tensors, batch_, h, i);
  Real delta = go_back_over_values(keys, dropout);
  if constexpr (std::is_same_v<Real, float>) delta = delta_of_stored_out(keys.begin, keys.end).value;
  if (problem.dlse.present) delta -= static_cast<const float*>(tensors.dlse.data)[offset_of(problem.dlse, batch_, h, i)];
  Real dsink_squares = 0;
  if (roundings_) dsink_squares = add_roundings(h, i, keys, dropout, max, sum, delta, sink_weight);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    dp[j] = rounded(p[j] * (dp[j] - delta));
    const Real dscore = rounded(rounded(dp[j] * slope[j]) * problem.softmax_scale);
    add_scaled(dq_.data(), k_.data() + j * problem.head_dim, dscore, problem.head_dim);
    add_scaled(dk_.data() + j * problem.head_dim, q_.data(), dscore, problem.head_dim);
  }
  return {dq_.data(), dp, rounded(-rounded(sink_weight / sum) * delta), dq_squares_.data(), dscores_squares_.data(), dsink_squares};
}

// The squares of docs/contract.md, "How correctness is judged", gradients; dprobabilities_ holds dp.
template <class Real>
Real BackwardHead<Real>::add_roundings(int64_t h, int64_t i, const AttendedKeys& keys, const RowDropout& dropout, Real max,
                                       Real sum, Real delta, Real sink_weight) noexcept {
  const Problem& problem = view_.problem;
  const Real unit = probability_unit(problem.dtype), least = least_probability_error(problem.dtype);
  const Real *p = probabilities_.data(), *dp = dprobabilities_.data();
  const auto norm = [](const std::vector<Real>& row) {
    Real squares = 0;
    for (const Real x : row) squares += x * x;
    return std::sqrt(squares);
  };
  const auto square = [](Real x) { return x * x; };
  const Real q_norm = norm(q_), dout_norm = norm(dout_), scale = std::fabs(Real(problem.softmax_scale));
  const auto count = static_cast<Real>(keys.end - keys.begin);
  const auto queries = static_cast<Real>(problem.seqlen_q * problem.group_size());
  const Real u = kUnitOfFloat, dot = u * std::sqrt(static_cast<Real>(problem.head_dim_v));
  const auto score_error = [&](int64_t j, Real score) -> Real {
    const auto at = static_cast<std::size_t>(j);
    const Real norms = q_norm * k_norms_[at];
    if (!huge_) return score_rounding(problem, norms, products_[at], score, max);
    // No probability exceeds 1, whatever its score.
    return std::fmin(huge_score_error(problem, view_.tensors, batch_, h, i, j, norms, products_[at], other_scores_[at]), 1 / p[j]);
  };
  const Real lse = max + std::log(sum);
  const Real lse_size = has_wide_bias(problem) ? std::fmin(std::fabs(lse), Real(kRoundedLse)) : std::fabs(lse);
  Real of_lse = u * (kRoundingsOfAScore * lse_size + kRoundingsOfAProbability + count / 2);
  Real of_delta = delta_of_stored_out(keys.begin, keys.end).squares + square(dot * dout_norm * std::fabs(delta));
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!(p[j] > 0)) continue;
    const Real of_score = score_error(j, scores_[static_cast<std::size_t>(j)]);
    of_lse += p[j] * of_score;
    of_delta += square((unit * p[j] + least) * dp[j]) + square(p[j] * of_score * (dp[j] - delta));
  }
  const Real common = std::sqrt(of_delta);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!(p[j] > 0)) continue;
    const auto at = static_cast<std::size_t>(j);
    const Real of_score = score_error(j, scores_[at]) + kRoundingsOfAProbability * u;
    const Real dscore = p[j] * (dp[j] - delta), factor = std::fabs(softcap_slope_[at]) * scale, dx = std::fabs(dscore) * factor;
    const Real of_dp = dot * dout_norm * v_norms_[at] * dropout.factor(j) + kRoundingsOfAProbability * u * std::fabs(dp[j]);
    const Real own = square(p[j] * of_dp) + square(of_score * dscore);
    dscores_squares_[at] = own + square(p[j] * common) + square(of_lse * dscore);
    const Real rounded_dx = unit * dx + least * std::fmax(Real{1}, scale);
    const Real for_dq = own * square(factor) + square(rounded_dx + u * count * dx / 2);
    const Real for_dk = dscores_squares_[at] * square(factor) + square(rounded_dx + u * queries * dx / 2);
    const Real weight = weights_[at];
    const Real for_dv =
        weight == 0 ? Real{0} : square(weight * (of_score + of_lse + unit + u * queries / 2) + least * dropout.factor(j));
    const Real* k = k_.data() + j * problem.head_dim;
    Real* dk = dk_squares_.data() + j * problem.head_dim;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      const auto column = static_cast<std::size_t>(d);
      dq_squares_[column] += for_dq * k[d] * k[d];
      dq_common_[column] += p[j] * factor * k[d];
      dk[d] += for_dk * q_[column] * q_[column];
    }
    Real* dv = dv_squares_.data() + j * problem.head_dim_v;
    for (int64_t d = 0; d < problem.head_dim_v; ++d) dv[d] += for_dv * square(dout_[static_cast<std::size_t>(d)]);
    add_scaled(dq_lse_.data(), k, dscore * softcap_slope_[at] * problem.softmax_scale, problem.head_dim);
  }
  for (std::size_t d = 0; d < dq_squares_.size(); ++d)
    dq_squares_[d] += square(common * dq_common_[d]) + square(of_lse * dq_lse_[d]);
  const Real sink = sink_weight / sum;
  return square(sink * common) + square(sink * delta * (of_lse + kRoundingsOfAProbability * u + u * queries / 2));
}

template <class Real>
typename BackwardHead<Real>::Delta BackwardHead<Real>::delta_of_stored_out(int64_t begin, int64_t end) const noexcept {
  const Problem& problem = view_.problem;
  Delta delta{0, 0};
  for (int64_t d = 0; d < problem.head_dim_v; ++d) {
    const Real* v = v_columns_.data() + d * problem.seqlen_k;
    Real out = 0;
    for (int64_t j = begin; j < end; ++j) {
      const Real weight = weights_[static_cast<std::size_t>(j)];
      if (weight != 0) out += weight * v[j];  // a masked key's V may be anything
    }
    const Real dout = dout_[static_cast<std::size_t>(d)];
    delta.value += dout * rounded(out);
    const Real error = dout * static_cast<Real>(half_ulp(problem.dtype, static_cast<double>(out)));
    delta.squares += error * error;
  }
  return delta;
}

template class BackwardHead<float>;
template class BackwardHead<double>;

}  // namespace fulmen::reference
