#include "plan/plan_variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "plan/explain.h"
#include "plan/plan_checks.h"
#include "plan/plan_impl.h"
#include "plan/problem_options.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

// Batch sizes up to this are all prepared by plan(): a few microseconds and kilobytes each.
constexpr int64_t kMostPrepared = 4096;
// Variants that were met in runs and are kept. One more, and all are forgotten: those in use
// meanwhile stay alive.
constexpr std::size_t kMostMet = 1024;

std::size_t hash_of(const Plan::Impl& plan, const AttentionTensors& tensors,
                    const RunOptions& options) {
  std::size_t hash = 0;
  const auto mix = [&hash](std::size_t x) { hash = (hash ^ x) * 0x9E3779B97F4A7C15ULL; };
  for (const UsedTensor& used : plan.used) {
    const Tensor& tensor = tensors->*kTensorTable[used.field].tensor;
    for (int d = 0; d < 4; ++d) mix(static_cast<std::size_t>(tensor.shape[d]));
    for (int d = 0; d < 3; ++d) mix(static_cast<std::size_t>(tensor.strides[d]));
  }
  mix(std::hash<float>{}(options.softmax_scale.value_or(0)) +
      std::hash<float>{}(options.softcap.value_or(-1)));
  mix(static_cast<std::size_t>(options.window_left.value_or(-2)));
  mix(static_cast<std::size_t>(options.window_right.value_or(-2)));
  return hash;
}

// A number of a Problem that a run may or may not change.
struct Size {
  const char* name;
  int64_t Problem::* value;
  InputTensor AttentionTensors::* tensor;
  const char* tensor_name;
  bool varies;
};

Status check_size(const Size& size, const Problem& given, const Problem& made,
                  const AttentionTensors& tensors) {
  const int64_t is = given.*size.value, most = made.*size.value;
  if (is == most || (size.varies && is < most)) return {};
  return {
      StatusCode::invalid_argument,
      fmt::format("{}.shape is {}: {} is {}; this plan was made for {}{}", size.tensor_name,
                  (tensors.*size.tensor).shape, size.name, is, size.varies ? "0 to " : "", most)};
}

// max_seqlen_k for tensors of a plan that was made with `most` keys. A cache may have room for more
// keys than a sequence holds.
int64_t longest_keys(const AttentionTensors& tensors, int64_t most) {
  if (absent(tensors.seqlens_k) && absent(tensors.leftpad_k)) return -1;
  int64_t room = tensors.k.shape[1];
  if (!absent(tensors.block_table) &&
      __builtin_mul_overflow(room, tensors.block_table.shape[3], &room))
    return -1;
  return std::min(most, std::max<int64_t>(room, -1));
}

}  // namespace

Problem resized(Problem p, int64_t batch, int64_t seqlen_k) {
  p.batch = batch;
  if (seqlen_k != p.seqlen_k) {
    p.seqlen_k = seqlen_k;
    p.padded_k = std::min(p.padded_k, seqlen_k);
    if (p.paged()) p.max_pages = (seqlen_k + p.page_size - 1) / p.page_size;
    if (!p.top_left && !p.variable_lengths()) p.diagonal = seqlen_k - p.seqlen_q;
  }
  return p;
}

std::vector<int64_t> sampled_sizes(bool vary, int64_t most) {
  if (!vary || most < 1) return {most};
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < most; size *= 2) sizes.push_back(size);
  if (most > 2 && sizes.back() != most - 1) sizes.push_back(most - 1);
  sizes.push_back(most);
  return sizes;
}

Status PlanVariants::note(const Plan::Impl& plan, const Problem& problem,
                          std::vector<Variant>* keep) {
  auto made = make_exact_plan(problem, plan.device, plan.backend, plan.asked);
  if (!made.ok()) {
    return {made.status().code(),
            fmt::format("batch {} and seqlen_k {} of the range: {}", problem.batch,
                        problem.seqlen_k, made.status().message())};
  }
  workspace_bytes_ = std::max(workspace_bytes_, made.value()->runner->workspace_bytes());
  if (keep != nullptr) keep->push_back(std::move(made).value());
  return {};
}

Status PlanVariants::prepare(const Plan::Impl& plan) {
  const Problem& p = plan.problem;
  workspace_bytes_ = plan.runner->workspace_bytes();
  if (!ranged()) return {};
  // Each batch, with the most keys: a kernel may split these for one batch and not for its
  // neighbour, and splits take workspace.
  if (vary_batch_ && !p.packed_q() && !p.packed_k() && p.batch <= kMostPrepared) {
    std::vector<Variant> all;
    for (int64_t batch = 0; batch <= p.batch; ++batch) {
      if (Status status =
              note(plan, resized(p, batch, p.seqlen_k), vary_seqlen_k_ ? nullptr : &all);
          !status.ok())
        return status;
    }
    by_batch_ = std::move(all);
    if (!vary_seqlen_k_) return {};
  }
  for (const int64_t batch : sampled_sizes(vary_batch_, p.batch)) {
    for (const int64_t keys : sampled_sizes(vary_seqlen_k_, p.seqlen_k)) {
      if (Status status = note(plan, resized(p, batch, keys), nullptr); !status.ok()) return status;
    }
  }
  return {};
}

Result<Problem> PlanVariants::ranged_problem(const Plan::Impl& plan,
                                             const AttentionTensors& tensors) const {
  const Problem& made = plan.problem;
  AttentionOptions options = options_of(made);
  if (!made.packed_k()) options.max_seqlen_k = longest_keys(tensors, made.seqlen_k);
  Result<Problem> problem = made.pass == Pass::forward ? make_problem(tensors, options)
                                                       : make_backward_problem(tensors, options);
  if (!problem.ok()) return problem;
  const Problem& given = problem.value();
  for (const TensorField& field : kTensorTable) {
    const TensorSpec &is = given.*field.spec, &wanted = made.*field.spec;
    if (is.present != wanted.present) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("{} is {}; this plan was made {} it", field.name,
                                is.present ? "given" : "missing", is.present ? "without" : "with"));
    }
    if (is.dtype != wanted.dtype) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}.dtype is {}; this plan was made for {}", field.name,
                                to_string(is.dtype), to_string(wanted.dtype)));
    }
  }
  if (!(given.functions == made.functions)) {
    return Status(StatusCode::invalid_argument,
                  "function_tensors are not those that this plan was made for: names, dtypes, "
                  "shapes and strides agree");
  }
  using T = AttentionTensors;
  using P = Problem;
  const bool any = ranged();
  for (const Size& size :
       {Size{"batch", &P::batch, &T::q, "q", vary_batch_},
        Size{"seqlen_q", &P::seqlen_q, &T::q, "q", made.packed_q()},
        Size{"num_heads", &P::num_heads, &T::q, "q", false},
        Size{"head_dim", &P::head_dim, &T::q, "q", false},
        Size{"total_q", &P::total_q, &T::q, "q", vary_batch_},
        Size{"seqlen_k", &P::seqlen_k, &T::k, "k", vary_seqlen_k_ || made.packed_k()},
        Size{"num_kv_heads", &P::num_kv_heads, &T::k, "k", false},
        Size{"head_dim_v", &P::head_dim_v, &T::v, "v", false},
        Size{"total_k", &P::total_k, &T::k, "k", any},
        Size{"padded_k", &P::padded_k, &T::k, "k", vary_seqlen_k_},
        Size{"num_pages", &P::num_pages, &T::k, "k", any},
        Size{"page_size", &P::page_size, &T::k, "k", false},
        Size{"max_pages", &P::max_pages, &T::block_table, "block_table", vary_seqlen_k_}}) {
    if (Status status = check_size(size, given, made, tensors); !status.ok()) return status;
  }
  // As the plan was made: whose memory v is in one run says nothing of the next, which finds the
  // same variant.
  problem->values_in_keys = made.values_in_keys && rows_of_k_and_v_agree(given);
  return problem;
}

Result<Problem> PlanVariants::problem_for(const Plan::Impl& plan, const AttentionTensors& tensors,
                                          const RunOptions& options) const {
  const bool by_tensors = ranged() && tensors.q.shape != Problem::Shape{};
  if (!by_tensors) {
    if (Status status = check_tensors(plan, tensors); !status.ok()) return status;
  }
  Result<Problem> problem =
      by_tensors ? ranged_problem(plan, tensors) : Result<Problem>(plan.problem);
  if (!problem.ok()) return problem;
  if (Status status = apply(options, problem.value()); !status.ok()) return status;
  return problem;
}

Result<PlanVariants::Variant> PlanVariants::find(const Plan::Impl& plan,
                                                 const AttentionTensors& tensors,
                                                 const RunOptions& options, void* stream) const {
  const bool as_planned = options == RunOptions{};
  // q's shape is all 0 where nothing but data is set: the plan's own sizes.
  if (as_planned && (!ranged() || tensors.q.shape == Problem::Shape{})) return Variant();
  const int64_t batch = tensors.q.shape[0];
  if (as_planned && batch >= 0 && batch < static_cast<int64_t>(by_batch_.size())) {
    const Variant& prepared = by_batch_[static_cast<std::size_t>(batch)];
    if (same_tensors(*prepared, tensors)) return prepared;
  }
  const std::size_t hash = hash_of(plan, tensors, options);
  {
    const std::shared_lock lock(mutex_);
    const auto [begin, end] = met_.equal_range(hash);
    for (auto met = begin; met != end; ++met) {
      if (met->second.options == options && same_tensors(*met->second.plan, tensors))
        return met->second.plan;
    }
  }
  const Result<Problem> problem = problem_for(plan, tensors, options);
  if (!problem.ok()) return problem.status();
  AttentionOptions asked = plan.asked;
  asked.check_first_use = asked.check_first_use &&
                          !(stream != nullptr && plan.backend->is_capturing(plan.device, stream));
  auto made = make_exact_plan(problem.value(), plan.device, plan.backend, asked);
  if (!made.ok()) return made.status();
  Variant variant = std::move(made).value();
  log_choice(*variant);
  decltype(met_) forgotten;  // plans end after the lock
  const std::scoped_lock lock(mutex_);
  if (met_.size() >= kMostMet) met_.swap(forgotten);
  met_.emplace(hash, Met{options, variant});
  return variant;
}

}  // namespace fulmen
