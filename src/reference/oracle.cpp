// Exact attention in double precision by plain loops: the formulas of docs/contract.md and nothing else.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "cpu/threading.h"
#include "fulmen/reference.h"
#include "reference/decode_rows.h"
#include "reference/oracle_rows.h"
#include "reference/row_loops.h"
#include "reference/score_row.h"

namespace fulmen::reference {

OracleHead::OracleHead(const Problem& problem, const AttentionTensors& tensors)
    : p_(problem),
      t_(tensors),
      k_(static_cast<std::size_t>(p_.head_dim * p_.seqlen_k)),
      v_(static_cast<std::size_t>(p_.seqlen_k * p_.head_dim_v)),
      scores_(static_cast<std::size_t>(p_.seqlen_k)),
      v_sizes_(static_cast<std::size_t>(p_.seqlen_k)) {}

void OracleHead::load(int64_t batch, int64_t kv_head) noexcept {
  if (batch == batch_ && kv_head == kv_head_) return;
  batch_ = batch;
  kv_head_ = kv_head;
  decode_transposed(t_.k.data, p_.dtype, offset_of(p_.k, batch, 0, kv_head), p_.k.strides[1], p_.seqlen_k, p_.head_dim, k_.data());
  for (int64_t j = 0; j < p_.seqlen_k; ++j) {
    double* v = v_.data() + j * p_.head_dim_v;
    decode_row(t_.v.data, p_.dtype, offset_of(p_.v, batch, j, kv_head), p_.head_dim_v, v);
    double size = 0;
    for (int64_t d = 0; d < p_.head_dim_v; ++d) size = std::fmax(size, std::fabs(v[d]));
    v_sizes_[static_cast<std::size_t>(j)] = size;
  }
}

double OracleHead::row(int64_t h, int64_t i, double* out) noexcept {
  const AttendedKeys keys(p_, t_, batch_, h, i);
  double* scores = scores_.data();

  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = 0;
  const int64_t q_row = offset_of(p_.q, batch_, i, h);
  for (int64_t d = 0; d < p_.head_dim; ++d) {
    const double q = load_float(t_.q.data, p_.dtype, q_row + d);
    add_scaled(scores + keys.begin, k_.data() + d * p_.seqlen_k + keys.begin, q, keys.end - keys.begin);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= static_cast<double>(p_.softmax_scale);
  add_score_terms(p_, t_, batch_, h, i, keys, scores, [](double score) { return score; });

  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sink = sink_of(p_, t_, h);
  double max = sink;
  bool nan = false;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    nan = nan || std::isnan(scores[j]);
    if (scores[j] > max) max = scores[j];
  }
  for (int64_t d = 0; d < p_.head_dim_v; ++d) out[d] = 0;
  magnitude_ = 0;
  if (max == -kInfinity && !nan) return -kInfinity;  // nothing to attend: zeros, not 0 / 0

  const RowDropout dropout(p_, t_, batch_, h, i);
  double sum = sink == -kInfinity ? 0 : std::exp(sink - max);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const double exponential = std::exp(scores[j] - max);
    sum += exponential;
    const double weight = exponential * dropout.factor(j);
    add_scaled(out, v_.data() + j * p_.head_dim_v, weight, p_.head_dim_v);
    magnitude_ += weight * v_sizes_[static_cast<std::size_t>(j)];
  }
  for (int64_t d = 0; d < p_.head_dim_v; ++d) out[d] /= sum;
  magnitude_ /= sum;
  return max + std::log(sum);
}

}  // namespace fulmen::reference

namespace fulmen {

void attention_reference(const Problem& problem, const AttentionTensors& tensors, double* out, double* lse) {
  const int64_t blocks = (problem.seqlen_q + reference::kRowsPerTask - 1) / reference::kRowsPerTask;
  const int64_t group = problem.num_kv_heads > 0 ? problem.group_size() : 0;
  const cpu::ThreadSettings threads = cpu::thread_settings({});
  std::vector<reference::OracleHead> heads;
  try {
    for (int worker = 0; worker < threads.num_threads; ++worker) heads.emplace_back(problem, tensors);
  } catch (const std::bad_alloc&) {  // nothing is thrown across the public edge, and NaN agrees with no result
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const int64_t rows = problem.batch * problem.seqlen_q * problem.num_heads;
    std::fill(out, out + rows * problem.head_dim_v, kNan);
    if (lse != nullptr) std::fill(lse, lse + rows, kNan);
    return;
  }

  cpu::parallel_tasks(threads, problem.batch * problem.num_kv_heads * blocks, [&](int64_t task, int worker) {
    const int64_t b = task / (problem.num_kv_heads * blocks);
    const int64_t kv_head = task / blocks % problem.num_kv_heads;
    const int64_t first = task % blocks * reference::kRowsPerTask;
    const int64_t last = std::min(first + reference::kRowsPerTask, problem.seqlen_q);
    reference::OracleHead& head = heads[static_cast<std::size_t>(worker)];
    head.load(b, kv_head);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t i = first; i < last; ++i) {
        const double row_lse = head.row(h, i, out + ((b * problem.seqlen_q + i) * problem.num_heads + h) * problem.head_dim_v);
        if (lse != nullptr) lse[(b * problem.num_heads + h) * problem.seqlen_q + i] = row_lse;
      }
    }
  });
}

}  // namespace fulmen
