// The plans inside a plan: for the sizes of a range, and for runs with a scale, softcap or window
// of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/plan.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "runtime/fork_safe.h"

namespace fulmen {

// Each variant is a plan of exactly its sizes and options, so it has the kernel, the tiles and the
// speed of a plan that was made for them. Batch sizes are prepared by plan() and found without a
// lock. Other variants are made when a run first needs them, and the latest are kept.
class PlanVariants {
 public:
  using Variant = std::shared_ptr<const Plan::Impl>;

  PlanVariants(bool vary_batch, bool vary_seqlen_k) noexcept
      : vary_batch_(vary_batch), vary_seqlen_k_(vary_seqlen_k) {}

  // Makes variants of a range's sizes, and with them loads (a GPU: compiles) their kernels. plan:
  // the one that these belong to.
  Status prepare(const Plan::Impl& plan);
  // The variant for a run, or null: the plan itself. Errors: a tensor or an option that the plan
  // does not take. stream: of the run.
  Result<Variant> find(const Plan::Impl& plan, const AttentionTensors& tensors,
                       const RunOptions& options, void* stream) const;

  bool ranged() const noexcept { return vary_batch_ || vary_seqlen_k_; }
  // The most that a variant of prepare() needs.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  // "; batch 0 to 3: cpu.decode.avx512, 4 to 64: cpu.short.avx512", or "" for a plan of one size.
  std::string explain(const Plan::Impl& plan) const;

 private:
  struct Met {
    RunOptions options;
    Variant plan;
  };
  Result<Problem> problem_for(const Plan::Impl& plan, const AttentionTensors& tensors,
                              const RunOptions& options) const;
  Result<Problem> ranged_problem(const Plan::Impl& plan, const AttentionTensors& tensors) const;
  Status note(const Plan::Impl& plan, const Problem& problem, std::vector<Variant>* keep);

  const bool vary_batch_, vary_seqlen_k_;
  std::size_t workspace_bytes_ = 0;
  std::vector<Variant> by_batch_;  // where the batch alone varies; constant after prepare()
  mutable SharedMutex mutex_;
  mutable std::unordered_multimap<std::size_t, Met> met_;
};

// The same problem of other sizes. Strides stay.
Problem resized(Problem p, int64_t batch, int64_t seqlen_k);
// 1, 2, 4 and so on, and the last two: where the kernel and its compiled-in numbers may differ.
std::vector<int64_t> sampled_sizes(bool vary, int64_t most);

}  // namespace fulmen
