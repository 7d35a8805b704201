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
BackwardHead<Real>::BackwardHead(const Problem& problem, const AttentionTensors& tensors,
                                 DType storage, bool roundings)
    : all_(problem),
      all_tensors_(tensors),
      view_(sequence_view(problem, tensors)),
      functions_(problem, tensors),
      storage_(storage),
      roundings_(roundings) {
  const auto keys = static_cast<std::size_t>(problem.seqlen_k);
  const auto dim = static_cast<std::size_t>(problem.head_dim),
             dim_v = static_cast<std::size_t>(problem.head_dim_v);
  for (std::vector<Real>* tensor : {&k_columns_, &k_, &dk_, &dk_squares_})
    tensor->resize(keys * dim);
  for (std::vector<Real>* tensor : {&v_columns_, &dv_, &dv_squares_}) tensor->resize(keys * dim_v);
  for (std::vector<Real>* row :
       {&scores_, &probabilities_, &dprobabilities_, &softcap_slope_, &weights_, &other_scores_,
        &products_, &dscores_squares_, &own_squares_, &k_norms_, &v_norms_})
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
  const KvSource k(view_, KvSource::Of::k, batch, kv_head),
      v(view_, KvSource::Of::v, batch, kv_head);
  decode_transposed(k, p.seqlen_k, k_columns_.data());
  decode_transposed(v, p.seqlen_k, v_columns_.data());
  decode_rows(k, p.seqlen_k, k_.data());
  std::fill(dk_.begin(), dk_.end(), Real{0});
  std::fill(dk_squares_.begin(), dk_squares_.end(), Real{0});
  std::fill(dv_squares_.begin(), dv_squares_.end(), Real{0});
  std::fill(dv_.begin(), dv_.end(), Real{0});
  if constexpr (std::is_same_v<Real, double>) {
    if (roundings_) measure_head();
  }
}

template <class Real>
void BackwardHead<Real>::compute_scores(int64_t h, int64_t i, const AttendedKeys& keys,
                                        bool from_last, Real* to) noexcept {
  const Problem& problem = view_.problem;
  std::fill(to + keys.begin, to + keys.end, Real{0});
  for (int64_t n = 0; n < problem.head_dim; ++n) {
    const int64_t d = from_last ? problem.head_dim - 1 - n : n;
    add_scaled(to + keys.begin, k_columns_.data() + d * problem.seqlen_k + keys.begin,
               q_[static_cast<std::size_t>(d)], keys.end - keys.begin);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    to[j] = rounded(to[j] * problem.softmax_scale);
    products_[static_cast<std::size_t>(j)] = to[j];
    const Real tanh = problem.softcap > 0 ? std::tanh(to[j] / problem.softcap) : Real{0};
    softcap_slope_[static_cast<std::size_t>(j)] = 1 - tanh * tanh;
  }
  add_score_terms(problem, view_.tensors, batch_, h, i, keys, to,
                  [this](Real x) { return stored(x); });
  functions_.apply(batch_, h, i, keys, to);
  for (int64_t j = keys.begin; problem.functions.any() && j < keys.end; ++j) to[j] = stored(to[j]);
}

template <class Real>
std::optional<typename BackwardHead<Real>::Softmax> BackwardHead<Real>::compute_probabilities(
    int64_t h, int64_t i, const AttendedKeys& keys) noexcept {
  Real *scores = scores_.data(), *p = probabilities_.data();
  compute_scores(h, i, keys, false, scores);
  RowMaximum<Real> row_max = largest_score(keys, scores);
  huge_ = round_huge_row(view_.problem, keys, scores, other_scores_.data(), row_max);
  const Real sink = sink_of(view_.problem, view_.tensors, h);
  row_max.include_sink(sink);
  if (row_max.attends_nothing()) return std::nullopt;

  const Real max = row_max.value;
  const Real sink_weight = sink == -HUGE_VAL ? Real{0} : std::exp(sink - max);
  Real sum = sink_weight;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    p[j] = keys.contains(j) ? std::exp(scores[j] - max) : Real{0};
    sum += p[j];
  }
  if constexpr (std::is_same_v<Real, float>) {
    // The forward pass adds up the scores of its lse in another order, so that the rounding of the
    // largest does not cancel.
    if (storage_ == DType::fp32 &&
        !(has_wide_bias(view_.problem) && std::fabs(max) > rounded_lse(view_.problem))) {
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
Real BackwardHead<Real>::value_gradients(const AttendedKeys& keys,
                                         const RowDropout& dropout) noexcept {
  const Problem& problem = view_.problem;
  const Real* p = probabilities_.data();
  Real* dp = dprobabilities_.data();
  for (int64_t d = 0; d < problem.head_dim_v; ++d) {
    add_scaled(dp + keys.begin, v_columns_.data() + d * problem.seqlen_k + keys.begin,
               dout_[static_cast<std::size_t>(d)], keys.end - keys.begin);
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
RowGradients<Real> BackwardHead<Real>::row(int64_t h, int64_t i, Real* const* functions,
                                           Real* const* function_squares) noexcept {
  const Problem& problem = view_.problem;
  const AttentionTensors& tensors = view_.tensors;
  AttendedKeys keys(problem, tensors, batch_, h, i);
  functions_.restrict_keys(batch_, h, i, keys);
  Real *p = probabilities_.data(), *dp = dprobabilities_.data(), *slope = softcap_slope_.data();
  decode_row(tensors.q.data, problem.dtype, offset_of(problem.q, batch_, i, h), problem.head_dim,
             q_.data());
  decode_row(tensors.dout.data, problem.dtype, offset_of(problem.dout, batch_, i, h),
             problem.head_dim_v, dout_.data());
  for (std::vector<Real>* sum :
       {&dq_, &dq_common_, &dq_lse_, &dq_squares_, &dscores_squares_, &dprobabilities_}) {
    std::fill(sum->begin(), sum->end(), Real{0});
  }

  const std::optional<Softmax> softmax = compute_probabilities(h, i, keys);
  // Nothing is attended: no gradient.
  if (!softmax) return {dq_.data(), dp, 0, dq_squares_.data(), dscores_squares_.data(), 0};
  const RowDropout dropout(problem, tensors, batch_, h, i);
  Real delta = value_gradients(keys, dropout);  // and dv_j += p_j dout, dp_j = dout . v_j
  if constexpr (std::is_same_v<Real, float>) delta = delta_of_stored_out(keys);
  if (problem.dlse.present)
    delta -= static_cast<const float*>(tensors.dlse.data)[offset_of(problem.dlse, batch_, h, i)];
  Real dsink_squares = 0;
  if constexpr (std::is_same_v<Real, double>) {
    if (roundings_) dsink_squares = add_roundings(h, i, keys, dropout, *softmax, delta);
  }
  // ds_j = p_j (dp_j - delta), times softcap's slope and scale: dq += ds_j k_j, dk_j += ds_j q
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    dp[j] = rounded(p[j] * (dp[j] - delta));
    if (dp[j] == 0) continue;  // its derivatives do not matter
    functions_.add_gradients(j, dp[j], {own_squares_[static_cast<std::size_t>(j)], p[j]}, functions,
                             function_squares);
    if (problem.functions.any()) dp[j] = rounded(dp[j] * functions_.slope(j));
    const Real dscore = rounded(rounded(dp[j] * slope[j]) * problem.softmax_scale);
    add_scaled(dq_.data(), k_.data() + j * problem.head_dim, dscore, problem.head_dim);
    add_scaled(dk_.data() + j * problem.head_dim, q_.data(), dscore, problem.head_dim);
  }
  functions_.end_row(of_delta_, of_lse_, function_squares);
  return {dq_.data(),
          dp,
          rounded(-rounded(softmax->sink_weight / softmax->sum) * delta),
          dq_squares_.data(),
          dscores_squares_.data(),
          dsink_squares};
}

template <class Real>
Real BackwardHead<Real>::delta_of_stored_out(const AttendedKeys& keys) const noexcept {
  Real delta = 0;
  for (int64_t d = 0; d < view_.problem.head_dim_v; ++d)
    delta += dout_[static_cast<std::size_t>(d)] * rounded(out(keys, d));
  return delta;
}

template <class Real>
Real BackwardHead<Real>::out(const AttendedKeys& keys, int64_t d) const noexcept {
  const Real* v = v_columns_.data() + d * view_.problem.seqlen_k;
  Real out = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const Real weight = weights_[static_cast<std::size_t>(j)];
    if (weight != 0) out += weight * v[j];  // a masked key's V may be anything
  }
  return out;
}

template class BackwardHead<float>;
template class BackwardHead<double>;

}  // namespace fulmen::reference
