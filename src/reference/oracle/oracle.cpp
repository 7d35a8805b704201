// Exact attention in double precision by plain loops: the formulas of docs/contract.md and nothing else.
#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <new>
#include <vector>

#include "fulmen/reference.h"
#include "reference/oracle/decode_rows.h"
#include "reference/oracle/huge_scores.h"
#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/row_positions.h"
#include "reference/oracle/score_row.h"
#include "reference/row_loops.h"
#include "runtime/empty_tensors.h"
#include "runtime/threading.h"

namespace fulmen::reference {
namespace {

// Beyond this the error of a score moves its probability by more than its linear part says.
constexpr double kLinearError = 0.5;
// Differences of scores beyond this are no probability in fp32.
constexpr double kExponentialRange = 104;

}  // namespace

OracleHead::OracleHead(const Problem& problem, const AttentionTensors& tensors)
    : all_(problem),
      all_tensors_(tensors),
      view_(sequence_view(problem, tensors)),
      k_(static_cast<std::size_t>(problem.head_dim * problem.seqlen_k)),
      v_(static_cast<std::size_t>(problem.seqlen_k * problem.head_dim_v)),
      scores_(static_cast<std::size_t>(problem.seqlen_k)),
      v_sizes_(static_cast<std::size_t>(problem.seqlen_k)),
      products_(static_cast<std::size_t>(problem.seqlen_k)),
      k_norms_(static_cast<std::size_t>(problem.seqlen_k)),
      exact_scores_(static_cast<std::size_t>(problem.seqlen_k)),
      of_scores_(static_cast<std::size_t>(problem.head_dim_v)) {}

void OracleHead::load(int64_t batch, int64_t kv_head) noexcept {
  if (batch == batch_ && kv_head == kv_head_) return;
  batch_ = batch;
  kv_head_ = kv_head;
  select_sequence(all_, all_tensors_, batch, view_);
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  decode_transposed(t.k.data, p.kv_dtype, KeyRows(view_, p.k, batch, kv_head), p.seqlen_k, p.head_dim, k_.data());
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    double squares = 0;
    for (int64_t d = 0; d < p.head_dim; ++d)
      squares += k_[static_cast<std::size_t>(d * p.seqlen_k + j)] * k_[static_cast<std::size_t>(d * p.seqlen_k + j)];
    k_norms_[static_cast<std::size_t>(j)] = std::sqrt(squares);
  }
  const KeyRows v_row(view_, p.v, batch, kv_head);
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    double* v = v_.data() + j * p.head_dim_v;
    decode_row(t.v.data, p.kv_dtype, v_row(j), p.head_dim_v, v);
    double size = 0;
    for (int64_t d = 0; d < p.head_dim_v; ++d) size = std::fmax(size, std::fabs(v[d]));
    v_sizes_[static_cast<std::size_t>(j)] = size;
  }
}

double OracleHead::row(int64_t h, int64_t i, double* out, double* rounding) noexcept {
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  const AttendedKeys keys(p, t, batch_, h, i);
  double* scores = scores_.data();

  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = 0;
  const int64_t q_row = offset_of(p.q, batch_, i, h);
  double q_squares = 0;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    const double q = load_float(t.q.data, p.dtype, q_row + d);
    q_squares += q * q;
    add_scaled(scores + keys.begin, k_.data() + d * p.seqlen_k + keys.begin, q, keys.end - keys.begin);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= static_cast<double>(p.softmax_scale);
  q_norm_ = std::sqrt(q_squares);
  if (rounding != nullptr) std::copy(scores + keys.begin, scores + keys.end, products_.data() + keys.begin);
  add_score_terms(p, t, batch_, h, i, keys, scores, [](double score) { return score; });

  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sink = sink_of(p, t, h);
  double max = -kInfinity;
  bool nan = false;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    nan = nan || std::isnan(scores[j]);
    if (scores[j] > max) max = scores[j];
  }
  huge_ = is_huge_row(p, max);
  if (huge_) {
    std::copy(scores + keys.begin, scores + keys.end, exact_scores_.data() + keys.begin);
    for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = static_cast<float>(scores[j]);
    max = static_cast<float>(max);
  }
  if (!(sink <= max)) max = sink;  // a NaN, too
  for (int64_t d = 0; d < p.head_dim_v; ++d) out[d] = 0;
  if (rounding != nullptr) std::fill_n(rounding, p.head_dim_v, 0.0);
  magnitude_ = lse_rounding_ = 0;
  if (max == -kInfinity && !nan) return -kInfinity;  // nothing to attend: zeros, not 0 / 0

  const RowDropout dropout(p, t, batch_, h, i);
  double sum = sink == -kInfinity ? 0 : std::exp(sink - max);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const double exponential = std::exp(scores[j] - max);
    sum += exponential;
    const double weight = exponential * dropout.factor(j);
    add_scaled(out, v_.data() + j * p.head_dim_v, weight, p.head_dim_v);
    magnitude_ += weight * v_sizes_[static_cast<std::size_t>(j)];
  }
  for (int64_t d = 0; d < p.head_dim_v; ++d) out[d] /= sum;
  magnitude_ /= sum;
  if (rounding != nullptr) add_rounding(h, i, keys, max, sum, out, rounding);
  return max + std::log(sum);
}

// The terms of R in docs/contract.md, in its order.
void OracleHead::add_rounding(int64_t h, int64_t i, const AttendedKeys& keys, double max, double sum, const double* out,
                              double* rounding) noexcept {
  const Problem& p = view_.problem;
  const RowDropout dropout(p, view_.tensors, batch_, h, i);
  const double unit = probability_unit(p.dtype), least = least_probability_error(p.dtype) / sum;
  int64_t summed = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (keys.contains(j) && std::exp(scores_[static_cast<std::size_t>(j)] - max) > kUnitOfFloat * sum) ++summed;
  }
  const double sums = kUnitOfFloat * (kRoundingsOfAProbability + 0.5 * static_cast<double>(summed));
  lse_rounding_ = sums + kRoundingsOfAScore * kUnitOfFloat * std::fabs(max + std::log(sum));
  bool any_weights = false;  // errors of scores may change who has the largest
  double largest_error = 0;
  std::fill(of_scores_.begin(), of_scores_.end(), 0.0);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const auto at = static_cast<std::size_t>(j);
    const double probability = std::exp(scores_[at] - max) / sum, norms = q_norm_ * k_norms_[at];
    double of_score = 0;
    if (huge_) {
      of_score = huge_score_error(p, view_.tensors, batch_, h, i, j, norms, products_[at], exact_scores_[at]) +
                 kRoundingsOfAScore * kUnitOfFloat * std::fmin(max - scores_[at], kExponentialRange);
    } else {
      of_score = score_rounding(p, norms, products_[at], scores_[at], max);
    }
    if (of_score > kLinearError && scores_[at] + of_score > max - kExponentialRange) {
      any_weights = true;
      largest_error = std::fmax(largest_error, of_score);
    }
    if (!(probability > 0)) continue;
    lse_rounding_ += probability * of_score;
    const double factor = dropout.factor(j), weight = probability * factor;
    const double relative = unit + sums + least / probability;
    const double* v = v_.data() + j * p.head_dim_v;
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      const double value = weight * v[d], moved = std::fabs(value - probability * out[d]);
      of_scores_[static_cast<std::size_t>(d)] += of_score * moved;
      rounding[d] += relative * std::fmax(moved, std::fabs(value));
    }
  }
  if (any_weights) {
    lse_rounding_ = std::fmax(lse_rounding_, largest_error);
    take_any_weights(keys, dropout, out);
  }
  for (int64_t d = 0; d < p.head_dim_v; ++d) rounding[d] += of_scores_[static_cast<std::size_t>(d)];
}

void OracleHead::take_any_weights(const AttendedKeys& keys, const RowDropout& dropout, const double* out) noexcept {
  const int64_t dim = view_.problem.head_dim_v;
  std::fill(of_scores_.begin(), of_scores_.end(), 0.0);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j) || scores_[static_cast<std::size_t>(j)] == -std::numeric_limits<double>::infinity()) continue;
    const double factor = dropout.factor(j);
    for (int64_t d = 0; d < dim; ++d) {
      double& most = of_scores_[static_cast<std::size_t>(d)];
      most = std::fmax(most, std::fabs(factor * v_[static_cast<std::size_t>(j * dim + d)] - out[d]));
    }
  }
}

}  // namespace fulmen::reference

namespace fulmen {

Status attention_reference(const Problem& problem, const AttentionTensors& given, double* out, double* lse,
                           const AttentionOptions& options) {
  const int64_t blocks = (problem.seqlen_q + reference::kRowsPerTask - 1) / reference::kRowsPerTask;
  const int64_t group = problem.group_size();
  try {
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    if (Status status = check_sequences(problem, given); !status.ok()) return status;
    const AttentionTensors tensors = without_null(problem, given);
    const Problem::Shape shape = problem.out_shape();
    if (out == nullptr && shape[0] * shape[1] * shape[2] * shape[3] > 0) {
      return {StatusCode::invalid_argument, "out is null: a pointer is needed"};
    }
    const int64_t tasks = problem.batch * problem.num_kv_heads * blocks;
    const cpu::ThreadSettings threads = cpu::at_most(tasks, cpu::thread_settings(options));
    std::vector<reference::OracleHead> heads;
    for (int worker = 0; worker < threads.num_threads; ++worker) heads.emplace_back(problem, tensors);
    cpu::parallel_tasks(threads, tasks, [&](int64_t task, int worker) {
      const int64_t b = task / (problem.num_kv_heads * blocks);
      const int64_t kv_head = task / blocks % problem.num_kv_heads;
      const int64_t first = task % blocks * reference::kRowsPerTask;
      reference::OracleHead& head = heads[static_cast<std::size_t>(worker)];
      head.load(b, kv_head);
      const SequenceView& sequence = head.sequence();
      const int64_t last = std::min(first + reference::kRowsPerTask, sequence.problem.seqlen_q);
      const reference::RowStatistics rows(problem, sequence, b);
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        for (int64_t i = first; i < last; ++i) {
          const double row_lse = head.row(h, i, out + (rows.q(i) * problem.num_heads + h) * problem.head_dim_v);
          if (lse != nullptr) lse[rows.lse(h, i)] = row_lse;
        }
      }
    });
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory for one KV head in double a thread"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, error.what()};
  } catch (...) {
    return {StatusCode::internal, "parallel_for threw"};
  }
}

}  // namespace fulmen
