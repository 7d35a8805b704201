// Exact attention in double precision by plain loops: the formulas of docs/contract.md and nothing
// else. oracle_bounds.cpp has the errors that its tolerance rule allows.
#include "reference/oracle/oracle_rows.h"

#include <algorithm>
#include <cmath>

#include "reference/oracle/decode_rows.h"
#include "reference/row_loops.h"

namespace fulmen::reference {

OracleHead::OracleHead(const Problem& problem, const AttentionTensors& tensors)
    : all_(problem),
      all_tensors_(tensors),
      view_(sequence_view(problem, tensors)),
      functions_(problem, tensors) {
  const auto keys = static_cast<std::size_t>(problem.seqlen_k);
  const auto dim = static_cast<std::size_t>(problem.head_dim),
             dim_v = static_cast<std::size_t>(problem.head_dim_v);
  k_.resize(dim * keys);
  v_.resize(keys * dim_v);
  for (std::vector<double>* row : {&scores_, &products_, &exact_scores_, &k_norms_, &v_sizes_})
    row->resize(keys);
  of_scores_.resize(dim_v);
}

void OracleHead::load(int64_t batch, int64_t kv_head) noexcept {
  if (batch == batch_ && kv_head == kv_head_) return;
  batch_ = batch;
  kv_head_ = kv_head;
  measured_ = false;
  select_sequence(all_, all_tensors_, batch, view_);
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const KeyRows k_rows(view_, p.k, batch, kv_head), v_rows(view_, p.v, batch, kv_head);
  decode_transposed(t.k.data, p.kv_dtype, k_rows, p.seqlen_k, p.head_dim, k_.data());
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    decode_row(t.v.data, p.kv_dtype, v_rows(j), p.head_dim_v, v_.data() + j * p.head_dim_v);
  }
}

AttendedKeys OracleHead::attended(int64_t h, int64_t i) noexcept {
  AttendedKeys keys(view_.problem, view_.tensors, batch_, h, i);
  functions_.restrict_keys(batch_, h, i, keys);
  return keys;
}

// s_j = scale * q.k_j, then softcap, bias, ALiBi and score_mod. m = max(sink, s_j)
RowMaximum<double> OracleHead::compute_scores(int64_t h, int64_t i,
                                              const AttendedKeys& keys) noexcept {
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  double* s = scores_.data();
  const int64_t q_row = offset_of(p.q, batch_, i, h);
  std::fill(s + keys.begin, s + keys.end, 0.0);
  for (int64_t d = 0; d < p.head_dim; ++d) {
    const double q = load_float(t.q.data, p.dtype, q_row + d);
    add_scaled(s + keys.begin, k_.data() + d * p.seqlen_k + keys.begin, q, keys.end - keys.begin);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) s[j] *= static_cast<double>(p.softmax_scale);
  std::copy(s + keys.begin, s + keys.end, products_.data() + keys.begin);
  add_score_terms(p, t, batch_, h, i, keys, s, [](double score) { return score; });
  functions_.apply(batch_, h, i, keys, s);
  RowMaximum<double> max = largest_score(keys, s);
  huge_ = round_huge_row(p, keys, s, exact_scores_.data(), max);
  max.include_sink(sink_of(p, t, h));
  return max;
}

// out = sum_j exp(s_j - m) dropout_j v_j / z with z = exp(sink - m) + sum_j exp(s_j - m)
double OracleHead::row(int64_t h, int64_t i, double* out) noexcept {
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const AttendedKeys keys = attended(h, i);
  const RowDropout dropout(p, t, batch_, h, i);
  const RowMaximum<double> max = compute_scores(h, i, keys);
  const double *s = scores_.data(), m = max.value, sink = sink_of(p, t, h);

  std::fill_n(out, p.head_dim_v, 0.0);
  last_ = {.h = h, .i = i, .max = m};
  if (max.attends_nothing()) return -HUGE_VAL;  // zeros, not 0 / 0
  double z = sink == -HUGE_VAL ? 0 : std::exp(sink - m);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const double weight = std::exp(s[j] - m);
    z += weight;
    add_scaled(out, v_row(j), weight * dropout.factor(j), p.head_dim_v);
  }
  for (int64_t d = 0; d < p.head_dim_v; ++d) out[d] /= z;
  last_.sum = z;
  return m + std::log(z);
}

}  // namespace fulmen::reference
