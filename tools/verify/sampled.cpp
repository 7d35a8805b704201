#include "tools/verify/sampled.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <utility>

namespace fulmen::tools {
namespace {

constexpr double kWholeCost = 1e9;  // multiply-adds of a comparison that is made in full
constexpr double kWholeGradientsCost = 3e8;
constexpr double kHeadCost = 7e8;    // a KV head's gradients, which one thread computes
constexpr int64_t kSampledRows = 8;  // at each place in the sequence

char* at(const Tensor& tensor, int64_t d0, int64_t d1, int64_t d2) {
  const auto& s = tensor.strides;
  return static_cast<char*>(tensor.data) +
         (d0 * s[0] + d1 * s[1] + d2 * s[2]) * size_of(tensor.dtype);
}

// A part of a problem: sequences and query rows of the query heads that share one KV head.
struct Part {
  int64_t batch, batches, kv_head, row, rows;
};

// Returns the part as a problem of its own. Sequences of different lengths, which are padded or
// paged, keep all rows.
void take_part(const Part& part, Problem& p, AttentionTensors& t) {
  const int64_t group = p.group_size();
  const int64_t h = part.kv_head * group, b = part.batch, rows = part.rows, first = part.row;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&t.q, &t.out, &t.dout, &t.dq}) {
    if (tensor->data == nullptr) continue;
    tensor->data = at(*tensor, b, first, h);
    tensor->shape = {part.batches, rows, group, tensor->shape[3]};
  }
  for (Tensor* tensor : std::initializer_list<Tensor*>{&t.k, &t.v, &t.dk, &t.dv}) {
    if (tensor->data == nullptr) continue;
    tensor->data = at(*tensor, p.paged() ? 0 : b, 0, part.kv_head);
    tensor->shape = {p.paged() ? p.num_pages : part.batches, tensor->shape[1], 1, tensor->shape[3]};
  }
  for (Tensor* scale : std::initializer_list<Tensor*>{&t.k_scale, &t.v_scale, &t.q_scale}) {
    if (scale->data == nullptr) continue;
    const auto& s = scale->shape;
    const bool of_sequence = s[0] > 1 && (!p.paged() || s[1] == 1);
    scale->data = at(*scale, of_sequence ? b : 0, 0, s[2] > 1 ? part.kv_head : 0);
    scale->shape = {of_sequence ? part.batches : s[0], s[1], 1, s[3]};
  }
  if (p.paged()) t.block_table.data = at(t.block_table, 0, 0, b);
  if (p.seqlens_k.present) t.seqlens_k.data = static_cast<int*>(t.seqlens_k.data) + b;
  for (Tensor* tensor :
       std::initializer_list<Tensor*>{&t.bias, &t.keep_mask, &t.lse, &t.dlse, &t.dbias}) {
    if (tensor->data == nullptr) continue;
    tensor->data = at(*tensor, b, h, first);
    tensor->shape = {std::min(tensor->shape[0], part.batches), group, rows, tensor->shape[3]};
  }
  if (t.alibi_slopes.data != nullptr)
    t.alibi_slopes.data =
        static_cast<float*>(t.alibi_slopes.data) + b * t.alibi_slopes.strides[0] + h;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&t.sinks, &t.dsinks}) {
    if (tensor->data != nullptr) tensor->data = static_cast<float*>(tensor->data) + h;
  }
  p.batch = part.batches;
  p.num_heads = group;
  p.num_kv_heads = 1;
  p.seqlen_q = rows;
  p.diagonal += first;
}

// Adds the report of a part of the result.
void add_part(const Part& part, Problem problem, AttentionTensors tensors, SampledReport& result) {
  take_part(part, problem, tensors);
  const VerifyReport report = verify_result(problem, tensors);
  if (!report.ok && result.report.ok) result.report.message = report.message;
  result.report.ok = result.report.ok && report.ok;
  result.report.worst_error = std::max(result.report.worst_error, report.worst_error);
  result.report.baseline_error = std::max(result.report.baseline_error, report.baseline_error);
  result.report.bound = std::max(result.report.bound, report.bound);
  result.report.lse_error = std::max(result.report.lse_error, report.lse_error);
}

// Returns the multiply-adds of a KV head's gradients, for one sequence, or for all where the bias's
// gradient is their sum.
double head_cost(const Problem& p) {
  const double batches =
      p.dbias.present && p.dbias.strides[0] == 0 ? static_cast<double>(p.batch) : 1;
  return batches * p.flops() / 2 /
         static_cast<double>(std::max<int64_t>(1, p.batch * p.num_kv_heads));
}

// The first, a middle and the last row of some KV heads.
void add_rows(const Problem& problem, const AttentionTensors& tensors, SampledReport& result) {
  const std::set<std::pair<int64_t, int64_t>> heads{{0, 0},
                                                    {problem.batch / 2, problem.num_kv_heads / 2},
                                                    {problem.batch - 1, problem.num_kv_heads - 1}};
  const int64_t rows = std::min(kSampledRows, problem.seqlen_q);
  const std::set<int64_t> firsts{0, (problem.seqlen_q - rows) / 2, problem.seqlen_q - rows};
  for (const auto& [b, kv_head] : heads) {
    for (const int64_t first : firsts)
      add_part({b, 1, kv_head, first, rows}, problem, tensors, result);
  }
}

// Rows and heads of a problem are one of their own but where functions or a block mask count them.
bool can_be_sampled(const Problem& problem) {
  return !problem.functions.any() && !problem.has_block_mask();
}

}  // namespace

SampledReport verify_sampled(const Problem& problem, const AttentionTensors& tensors) {
  SampledReport result;
  const double cost =
      static_cast<double>(problem.batch * problem.num_heads * problem.seqlen_q) *
      static_cast<double>(problem.seqlen_k * (problem.head_dim + problem.head_dim_v));
  if (cost <= kWholeCost || !can_be_sampled(problem)) {
    result.report = verify_result(problem, tensors);
    return result;
  }
  result.everything = false;
  result.report.ok = true;
  add_rows(problem, tensors, result);
  return result;
}

bool gradients_are_affordable(const Problem& problem) { return head_cost(problem) <= kHeadCost; }

SampledReport verify_gradients_sampled(const Problem& problem, const AttentionTensors& tensors) {
  SampledReport result;
  if (problem.flops() / 2 <= kWholeGradientsCost || !can_be_sampled(problem)) {
    result.report = verify_result(problem, tensors);
    return result;
  }
  result.everything = false;
  result.report.ok = true;
  if (gradients_are_affordable(problem)) {
    const bool summed = problem.dbias.present && problem.dbias.strides[0] == 0;
    const std::set<std::pair<int64_t, int64_t>> heads{
        {0, 0}, {problem.batch - 1, problem.num_kv_heads - 1}};
    for (const auto& [b, kv_head] : heads) {
      add_part({summed ? 0 : b, summed ? problem.batch : 1, kv_head, 0, problem.seqlen_q}, problem,
               tensors, result);
    }
    return result;
  }
  Problem rows = problem;
  AttentionTensors views = tensors;
  for (TensorSpec* spec : {&rows.dk, &rows.dv, &rows.dbias, &rows.dsinks}) *spec = {};
  for (Tensor* tensor : {&views.dk, &views.dv, &views.dbias, &views.dsinks}) *tensor = {};
  add_rows(rows, views, result);
  return result;
}

}  // namespace fulmen::tools
