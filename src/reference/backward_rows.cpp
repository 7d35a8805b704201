#include "reference/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "reference/decode_rows.h"
#include "reference/row_loops.h"
#include "reference/score_row.h"

namespace fulmen::reference {

template <class Real>
BackwardHead<Real>::BackwardHead(const Problem& problem, const AttentionTensors& tensors, DType storage)
    : all_(problem), all_tensors_(tensors), view_(sequence_view(problem, tensors)), storage_(storage) {
  const auto keys = static_cast<std::size_t>(problem.seqlen_k);
  const auto dim = static_cast<std::size_t>(problem.head_dim), dim_v = static_cast<std::size_t>(problem.head_dim_v);
  for (std::vector<Real>* tensor : {&k_columns_, &k_, &dk_, &dk_rounding_}) tensor->resize(keys * dim);
  for (std::vector<Real>* tensor : {&v_columns_, &dv_}) tensor->resize(keys * dim_v);
  for (std::vector<Real>* row : {&scores_, &probabilities_, &dprobabilities_, &softcap_slope_, &weights_, &other_scores_})
    row->resize(keys);
  q_.resize(dim);
  dq_.resize(dim);
  dq_rounding_.resize(dim);
  dq_squares_.resize(dim);
  dout_.resize(dim_v);
}

template <class Real>
Real BackwardHead<Real>::rounded(Real x) const noexcept {
  if constexpr (std::is_same_v<Real, float>) return round_to(storage_, x);
  return x;
}

template <class Real>
void BackwardHead<Real>::load(int64_t batch, int64_t kv_head) noexcept {
  batch_ = batch;
  select_sequence(all_, all_tensors_, batch, view_);
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const KeyRows k_row(view_, p.k, batch, kv_head), v_row(view_, p.v, batch, kv_head);
  decode_transposed(t.k.data, p.dtype, k_row, p.seqlen_k, p.head_dim, k_columns_.data());
  decode_transposed(t.v.data, p.dtype, v_row, p.seqlen_k, p.head_dim_v, v_columns_.data());
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    decode_row(t.k.data, p.dtype, k_row(j), p.head_dim, k_.data() + j * p.head_dim);
  }
  std::fill(dk_.begin(), dk_.end(), Real{0});
  std::fill(dk_rounding_.begin(), dk_rounding_.end(), Real{0});
  std::fill(dv_.begin(), dv_.end(), Real{0});
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
    const Real tanh = problem.softcap > 0 ? std::tanh(to[j] / problem.softcap) : Real{0};
    softcap_slope_[static_cast<std::size_t>(j)] = 1 - tanh * tanh;
  }
  add_score_terms(problem, view_.tensors, batch_, h, i, keys, to, [this](Real x) { return rounded(x); });
}

template <class Real>
RowGradients<Real> BackwardHead<Real>::row(int64_t h, int64_t i) noexcept {
  const Problem& problem = view_.problem;
  const AttentionTensors& tensors = view_.tensors;
  const AttendedKeys keys(problem, tensors, batch_, h, i);
  const int64_t count = keys.end - keys.begin;
  Real *scores = scores_.data(), *p = probabilities_.data(), *dp = dprobabilities_.data(), *slope = softcap_slope_.data();
  decode_row(tensors.q.data, problem.dtype, offset_of(problem.q, batch_, i, h), problem.head_dim, q_.data());
  decode_row(tensors.dout.data, problem.dtype, offset_of(problem.dout, batch_, i, h), problem.head_dim_v, dout_.data());
  std::fill(dq_.begin(), dq_.end(), Real{0});
  std::fill(dq_rounding_.begin(), dq_rounding_.end(), Real{0});
  std::fill(dq_squares_.begin(), dq_squares_.end(), Real{0});
  std::fill(dprobabilities_.begin(), dprobabilities_.end(), Real{0});

  compute_scores(h, i, keys, false, scores);
  constexpr Real kInfinity = HUGE_VAL;
  const Real sink = sink_of(problem, tensors, h);
  Real max = sink;
  bool nan = false;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    nan = nan || std::isnan(scores[j]);
    max = scores[j] > max ? scores[j] : max;
  }
  if (max == -kInfinity && !nan) return {dq_.data(), dp, 0, 0, p, 0, 0};  // nothing is attended: no gradient

  const Real sink_weight = sink == -kInfinity ? Real{0} : std::exp(sink - max);
  Real sum = sink_weight;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    p[j] = keys.contains(j) ? std::exp(scores[j] - max) : Real{0};
    sum += p[j];
  }
  if constexpr (std::is_same_v<Real, float>) {
    // The forward pass stores lse by scores that it added up in an order of its own, so that what rounds the largest does not
    // cancel.
    if (storage_ == DType::fp32) {
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

  for (int64_t d = 0; d < problem.head_dim_v; ++d) {
    add_scaled(dp + keys.begin, v_columns_.data() + d * problem.seqlen_k + keys.begin, dout_[static_cast<std::size_t>(d)], count);
  }
  const RowDropout dropout(problem, tensors, batch_, h, i);
  Real delta = 0;  // sum_j p_j dp_j, which is dout . out
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
  Real rounding = 0, delta_rounding = 0;
  if constexpr (std::is_same_v<Real, float>) {
    // Where few rows are added up, rounding errors may cancel by luck, which must not be asked of others: they count for at least
    // what is usual.
    const Delta stored = delta_of_stored_out(keys.begin, keys.end);
    const Real error = stored.value - delta;
    delta_rounding = std::max(std::fabs(error), stored.usual_error);
    delta += std::copysign(delta_rounding, error);
    rounding = stored.largest_error;
  }
  if (problem.dlse.present) delta -= static_cast<const float*>(tensors.dlse.data)[offset_of(problem.dlse, batch_, h, i)];
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    dp[j] = rounded(p[j] * (dp[j] - delta));
    const Real dscore = rounded(rounded(dp[j] * slope[j]) * problem.softmax_scale);
    add_scaled(dq_.data(), k_.data() + j * problem.head_dim, dscore, problem.head_dim);
    add_scaled(dk_.data() + j * problem.head_dim, q_.data(), dscore, problem.head_dim);
    if constexpr (std::is_same_v<Real, float>) {
      const Real error = p[j] * delta_rounding * slope[j] * problem.softmax_scale;
      const Real own_error =
          dscore * static_cast<Real>(usual_rounding(storage_));  // the product's operand is rounded, too, each by itself
      add_scaled(dq_rounding_.data(), k_.data() + j * problem.head_dim, error, problem.head_dim);
      for (int64_t d = 0; d < problem.head_dim; ++d) {
        const Real q = q_[static_cast<std::size_t>(d)], k = k_[static_cast<std::size_t>(j * problem.head_dim + d)];
        dq_squares_[static_cast<std::size_t>(d)] += own_error * own_error * k * k;
        dk_rounding_[static_cast<std::size_t>(j * problem.head_dim + d)] += (error * error + own_error * own_error) * q * q;
      }
    }
  }
  Real dq_rounding = 0;
  for (std::size_t d = 0; d < dq_rounding_.size(); ++d) {
    dq_rounding = std::max(dq_rounding, std::sqrt(dq_rounding_[d] * dq_rounding_[d] + dq_squares_[d]));
  }
  return {dq_.data(),     dp,         rounded(-rounded(sink_weight / sum) * delta), sink_weight / sum * rounding, p,
          delta_rounding, dq_rounding};
}

// dout . out of the row at hand, with out rounded as the forward pass stores it, and what the rounding may have changed: what is
// usual, not the rounding itself, which is nothing where out is one of V's rows by a probability that was rounded to 1.
template <class Real>
typename BackwardHead<Real>::Delta BackwardHead<Real>::delta_of_stored_out(int64_t begin, int64_t end) const noexcept {
  const auto usual = static_cast<Real>(usual_rounding(storage_));
  const Problem& problem = view_.problem;
  Delta delta{0, 0, 0};
  Real squares = 0;
  for (int64_t d = 0; d < problem.head_dim_v; ++d) {
    const Real* v = v_columns_.data() + d * problem.seqlen_k;
    Real out = 0;
    for (int64_t j = begin; j < end; ++j) {
      const Real weight = weights_[static_cast<std::size_t>(j)];
      if (weight != 0) out += weight * v[j];  // a masked key's V may be anything
    }
    const Real dout = dout_[static_cast<std::size_t>(d)];
    delta.value += dout * rounded(out);
    const Real error = dout * out * usual;
    delta.largest_error += 2 * std::fabs(error);
    squares += error * error;
  }
  delta.usual_error = std::sqrt(squares);
  return delta;
}

template class BackwardHead<float>;
template class BackwardHead<double>;

}  // namespace fulmen::reference
