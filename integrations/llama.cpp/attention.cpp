#include "attention.h"

#include <algorithm>
#include <mutex>

#include "../rounding.h"
#include "mask.h"

namespace fulmen_ggml {

using fulmen_integrations::round_row;
using fulmen_integrations::widen_row;

namespace {

constexpr std::size_t kMostPlans = 256;   // a token of each context length needs one
constexpr int64_t kParts = 64;            // of rows that are rounded, for threads
constexpr int64_t kWorthThreads = 16384;  // numbers, below which waking a thread costs more

Plan make_plan(const Call& call, std::string& error) {
  fulmen_plan* made = nullptr;
  if (fulmen_plan_create(&call.tensors, &call.options, "cpu", &made) != FULMEN_OK)
    error = fulmen_last_error();
  return Plan(made);
}

// Every [batch, seqlen_q, num_heads] row between the operation's fp32 and 16 bits.
struct Rows {
  const View* view;  // fp32
  int seqlen_dim, head_dim;
  uint16_t* bits;
  int32_t dtype;
  bool widen;

  int64_t count() const { return view->ne[1] * view->ne[2] * view->ne[3]; }
  void convert(int64_t row) const {
    const int64_t heads = view->ne[head_dim], seqlen = view->ne[seqlen_dim], width = view->ne[0];
    const auto i2 = static_cast<std::size_t>(row % heads);
    const auto i1 = static_cast<std::size_t>(row / heads % seqlen);
    const auto i3 = static_cast<std::size_t>(row / heads / seqlen);
    void* at = static_cast<char*>(view->data) + i2 * view->nb[head_dim] +
               i1 * view->nb[seqlen_dim] + i3 * view->nb[3];
    if (widen)
      widen_row(bits + row * width, width, dtype, static_cast<float*>(at));
    else
      round_row(static_cast<const float*>(at), width, dtype, bits + row * width);
  }
  static void part(void* arg, int64_t part) {
    const Rows& rows = *static_cast<const Rows*>(arg);
    const int64_t all = rows.count();
    for (int64_t row = all * part / kParts; row < all * (part + 1) / kParts; ++row)
      rows.convert(row);
  }
};

}  // namespace

std::string refusal(const Operation& operation) {
  if (std::string why = why_not_translated(operation); !why.empty()) return why;
  std::vector<MaskForm> forms = {MaskForm::none};
  if (operation.has_mask) {
    forms.push_back(MaskForm::keep);
    forms.push_back(operation.max_bias > 0 ? MaskForm::slopes : MaskForm::bias);
  }
  static std::mutex mutex;
  static std::map<std::vector<int64_t>, std::string> known;
  for (const MaskForm form : forms) {
    Call call;
    translate(operation, form, {0, operation.k.ne[1]}, nullptr, nullptr, nullptr, nullptr, call);
    call.options.num_threads = 1;
    std::vector<int64_t> key = plan_key(call);
    const std::scoped_lock lock(mutex);
    auto found = known.find(key);
    if (found == known.end()) {
      std::string error;
      make_plan(call, error);
      if (known.size() >= kMostPlans) known.clear();
      found = known.emplace(std::move(key), std::move(error)).first;
    }
    if (!found->second.empty()) return found->second;
  }
  return {};
}

fulmen_plan* Attention::plan_for(const Call& call) {
  std::vector<int64_t> key = plan_key(call);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  std::string error;
  Plan plan = make_plan(call, error);
  if (plan == nullptr) return nullptr;
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.emplace(std::move(key), std::move(plan)).first->second.get();
}

void Attention::in_parallel(int64_t numbers, void (*task)(void*, int64_t), void* arg) const {
  if (parallel_for_ != nullptr && numbers >= kWorthThreads)
    return parallel_for_(context_, kParts, task, arg);
  for (int64_t part = 0; part < kParts; ++part) task(arg, part);
}

std::string Attention::run(const Operation& operation) {
  if (operation.q.ne[1] * operation.q.ne[2] * operation.q.ne[3] * operation.v.ne[0] == 0) return {};
  MaskSummary mask{MaskForm::none, {0, operation.k.ne[1]}};
  if (operation.has_mask) mask = summarize_mask(operation, keep_);
  if (mask.form == MaskForm::bias && operation.max_bias > 0) {
    mask.form = MaskForm::slopes;
    slopes_ = alibi_slopes(operation.q.ne[2], operation.max_bias);
  }

  const int32_t dtype = working_dtype(operation);
  void *q = operation.q.data, *out = operation.out.data;
  Rows rows{&operation.q, 1, 2, nullptr, dtype, false};
  Rows results{&operation.out, 2, 1, nullptr, dtype, true};
  if (dtype != FULMEN_FP32) {
    q_.resize(static_cast<std::size_t>(rows.count() * operation.q.ne[0]));
    out_.resize(static_cast<std::size_t>(results.count() * operation.out.ne[0]));
    q = rows.bits = q_.data();
    out = results.bits = out_.data();
    in_parallel(rows.count() * operation.q.ne[0], Rows::part, &rows);
  }

  Call call;
  translate(operation, mask.form, mask.keys, q, out, keep_.data(), slopes_.data(), call);
  call.options.num_threads = num_threads_;
  call.options.parallel_for = parallel_for_;
  call.options.parallel_for_context = context_;
  last_ = plan_for(call);
  if (last_ == nullptr) return fulmen_last_error();
  workspace_.resize(std::max(workspace_.size(), fulmen_plan_workspace_bytes(last_) + 64));
  void* aligned = workspace_.data();
  std::size_t room = workspace_.size();
  std::align(64, fulmen_plan_workspace_bytes(last_), aligned, room);
  if (fulmen_plan_run(last_, nullptr, &call.tensors, aligned, room) != FULMEN_OK)
    return fulmen_last_error();
  if (dtype != FULMEN_FP32)
    in_parallel(results.count() * operation.out.ne[0], Rows::part, &results);
  return {};
}

}  // namespace fulmen_ggml
