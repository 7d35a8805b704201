// What the backward families share: launches beside the products, and the workspace.
#pragma once

#include <utility>

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// A plan of the backward pass, in the order of its launches.
class BackwardPlan {
 public:
  BackwardPlan(const Problem& problem, int compute_units);
  // The launch before the products: each row's log-sum-exp and delta.
  void add_row_numbers(const Specialisation& products);
  // dq (rows are queries), or dk, dv or both (rows are keys), by the kernel that `s` describes.
  void add_rows(Specialisation s, int outputs);
  // dq, and dk, dv or both, by one kernel whose atomics add to sums for dq.
  void add_with_atomics(Specialisation s, int outputs);
  // dbias, and dq where `outputs` says so, by the kernel that `s` describes, and the sum of its parts; dsinks.
  void add_bias(Specialisation s, int outputs);
  void add_sinks(const Specialisation& products);
  // All gradients by one launch, a workgroup a run of batches of a head, and the sum of dbias's parts.
  void add_runs(Specialisation s, int64_t run_batches);
  LaunchPlan take() { return std::move(plan_); }

 private:
  void add_bias_sum(const Specialisation& s, int64_t parts);

  const Problem& p_;
  int compute_units_;
  LaunchPlan plan_;
};

// kernels/backward_portable.h for a problem.
Specialisation portable_backward_kernel(const Problem& problem);

}  // namespace fulmen::gpu
