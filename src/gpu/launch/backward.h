// What the backward families share: launches beside the products, and the workspace.
#pragma once

#include <utility>

#include "gpu/launch/family.h"
#include "gpu/launch/mask_bits.h"

namespace fulmen::gpu {

// A plan of the backward pass, in the order of its launches.
class BackwardPlan {
 public:
  BackwardPlan(const Problem& problem, int compute_units);
  // The launch before the products: each row's log-sum-exp and delta.
  void add_row_statistics(const Specialisation& products);
  // dq (rows are queries), or dk, dv or both (rows are keys), by the kernel that `s` describes.
  void add_rows(Specialisation s, int outputs);
  // dk, dv or both, whose queries are split (kernels/backward/parts/key_sums.h) where blocks of
  // keys are too few to fill the chip.
  void add_keys(Specialisation s, int outputs);
  // dq, and dk, dv or both, by one kernel that adds to sums for dq. workgroups: of a persistent
  // kernel; 0: one a block of keys.
  void add_with_query_sums(const Specialisation& s, int64_t workgroups = 0);
  // Sequences of different lengths: the table of runs of blocks of so many keys
  // (kernels/backward/parts/block_table.h), behind the sums for dq. The row statistics' launch
  // makes it.
  void add_block_table(int block_keys);
  // So many counters behind these, which begin with 0, too.
  void add_counters(int64_t count);
  // dbias, and dq where `outputs` says so, by the kernel that `s` describes, and the sum of its
  // parts, unless a launch so far stores dbias: then what that one leaves out is cleared before.
  void add_bias(Specialisation s, int outputs);
  // dbias alone, if it is wanted, by a launch of its own beside a family for `target`.
  void add_bias(const Target& target, const Chip& chip);
  void add_sinks(const Specialisation& products);
  // Gradients of functions' tensors, beside a family whose kernels are those of `products`.
  void add_tensor_gradients(const Specialisation& products, const Chip& chip);
  // All gradients by one launch, a workgroup a run of batches of a head, and the sum of dbias's
  // parts.
  void add_runs(Specialisation s, int64_t run_batches);
  LaunchPlan take() {
    add_mask_bits(p_, plan_);
    return std::move(plan_);
  }

 private:
  void add_bias_sum(const Specialisation& s, int64_t parts);
  bool clears_stored_bias();
  void add_rounded_rows(const Specialisation& products, const Specialisation& statistics);

  const Problem& p_;
  int compute_units_;
  LaunchPlan plan_;
};

// A family of one kernel that gives dk, dv or both and adds dq to sums in memory by atomics.
class AtomicFamily : public Family {
 public:
  using Family::Family;
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool deterministic() const noexcept override { return false; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& problem, const Chip& chip) const override;
  LaunchPlan plan(const Problem& problem, const Chip& chip, int compute_units) const override;
  tuning::Space space(const Problem& problem, const Chip& chip, int compute_units) const override;
  LaunchPlan tuned_plan(const Problem& problem, const Chip& chip, int compute_units,
                        std::span<const int> values) const override;

 private:
  // The kernel; only of problems whose gradients are such.
  virtual Specialisation specialisation(const Problem& problem, const Chip& chip) const = 0;
  virtual int lds_bytes(const Specialisation& s) const = 0;
  // How many tiles of queries may be in LDS.
  virtual std::vector<int> buffer_counts(const Specialisation& s) const = 0;
  Specialisation with(Specialisation s, std::span<const int> values) const;
};

// backward_wgmma.h for a problem: what backward_tma.h falls back on.
LaunchPlan backward_wgmma_plan(const Problem& problem, const Target& target, const Chip& chip,
                               int compute_units);

// Where no element of dbias is a sum, one launch stores it beside its own outputs
// (kernels/backward/parts/stored_bias.h): s becomes such a launch.
void store_bias(const Problem& problem, Specialisation& s);

void set_shape(const BackwardShape& shape, const Chip& chip, Specialisation& s);

// Which of dq, dk and dv a problem asks for: Specialisation::outputs.
int outputs_of(const Problem& problem);

// kernels/backward/backward_portable.h for a problem, with the portable target's tiles.
Specialisation backward_portable_kernel(const Problem& problem, const Chip& chip);
// kernels/backward/bias_gradient.h for a problem, beside a family for `target`; the portable kernel
// where it has no tiles for it.
Specialisation bias_gradient_kernel(const Problem& problem, const Target& target, const Chip& chip);
// How many parts bias_gradient.h's sums are cut into: of so many tiles with so many terms each, of
// which `slots` run at once. most: parts that there is memory for.
int64_t bias_gradient_parts(int64_t tiles, int64_t terms, int64_t most, int64_t slots);

}  // namespace fulmen::gpu
