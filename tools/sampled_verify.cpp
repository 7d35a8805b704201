#include "sampled_verify.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace fulmen::tools {
namespace {

constexpr double kWholeCost = 1e9;   // multiply-adds of a comparison that is made in full
constexpr int64_t kSampledRows = 8;  // of each place in the sequence

char* at(const Tensor& tensor, int64_t d0, int64_t d1, int64_t d2) {
  const auto& s = tensor.strides;
  return static_cast<char*>(tensor.data) + (d0 * s[0] + d1 * s[1] + d2 * s[2]) * size_of(tensor.dtype);
}

// The rows [first, first + rows) of the query heads that share one KV head, as a problem of its own.
void take_part(int64_t b, int64_t kv_head, int64_t first, int64_t rows, Problem& p, AttentionTensors& t) {
  const int64_t group = p.group_size();
  const int64_t h = kv_head * group;
  t.q.data = at(t.q, b, first, h);
  t.k.data = at(t.k, b, 0, kv_head);
  t.v.data = at(t.v, b, 0, kv_head);
  t.out.data = at(t.out, b, first, h);
  for (Tensor* tensor : {&t.q, &t.out}) tensor->shape = {1, rows, group, tensor->shape[3]};
  for (Tensor* tensor : {&t.k, &t.v}) tensor->shape = {1, p.seqlen_k, 1, tensor->shape[3]};
  for (Tensor* tensor : {&t.bias, &t.keep_mask, &t.lse}) {
    if (tensor->data == nullptr) continue;
    tensor->data = at(*tensor, b, h, first);
    tensor->shape = {1, group, rows, tensor->shape[3]};
  }
  if (t.alibi_slopes.data != nullptr)
    t.alibi_slopes.data = static_cast<float*>(t.alibi_slopes.data) + b * t.alibi_slopes.strides[0] + h;
  if (t.sinks.data != nullptr) t.sinks.data = static_cast<float*>(t.sinks.data) + h;
  p.batch = 1;
  p.num_heads = group;
  p.num_kv_heads = 1;
  p.seqlen_q = rows;
  p.diagonal += first;
}

}  // namespace

SampledReport verify_sampled(const Problem& problem, const AttentionTensors& tensors) {
  SampledReport result;
  const double cost = static_cast<double>(problem.batch * problem.num_heads * problem.seqlen_q) *
                      static_cast<double>(problem.seqlen_k * (problem.head_dim + problem.head_dim_v));
  if (cost <= kWholeCost) {
    result.report = verify_result(problem, tensors);
    return result;
  }
  result.everything = false;
  result.report.ok = true;
  const std::set<std::pair<int64_t, int64_t>> heads{
      {0, 0}, {problem.batch / 2, problem.num_kv_heads / 2}, {problem.batch - 1, problem.num_kv_heads - 1}};
  const int64_t rows = std::min(kSampledRows, problem.seqlen_q);
  const std::set<int64_t> firsts{0, (problem.seqlen_q - rows) / 2, problem.seqlen_q - rows};
  for (const auto& [b, kv_head] : heads) {
    for (const int64_t first : firsts) {
      Problem part = problem;
      AttentionTensors views = tensors;
      take_part(b, kv_head, first, rows, part, views);
      const VerifyReport report = verify_result(part, views);
      if (!report.ok && result.report.ok) result.report.message = report.message;
      result.report.ok = result.report.ok && report.ok;
      result.report.worst_error = std::max(result.report.worst_error, report.worst_error);
      result.report.baseline_error = std::max(result.report.baseline_error, report.baseline_error);
      result.report.bound = std::max(result.report.bound, report.bound);
      result.report.lse_error = std::max(result.report.lse_error, report.lse_error);
    }
  }
  return result;
}

}  // namespace fulmen::tools
