// A family of GPU kernels: which problems it runs on which chip, and how. One file each in this folder, listed in families().
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"
#include "gpu/chip.h"
#include "gpu/driver.h"
#include "gpu/launch/specialisation.h"
#include "tuning/space.h"

namespace fulmen::gpu {

// One launch of a plan.
struct KernelLaunch {
  Specialisation specialisation;
  int64_t workgroups = 0;
  bool programmatic_launch = false;  // gpu/driver.h
};

// What a plan runs: one launch, or two with split keys, or a launch a few gradients.
struct LaunchPlan {
  std::vector<KernelLaunch> launches;
  kernels::BackwardArguments arguments{};  // without pointers
  // Workspace, in floats from its start: partial results of splits; backward: row numbers, then parts of the bias's gradient,
  // then sums for dq.
  int64_t partial_out_floats = 0, partial_row_floats = 0;
  int64_t row_statistics_floats = 0, bias_partial_floats = 0, query_sum_floats = 0;
  int num_splits = 0;
};

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const noexcept = 0;  // "prefill": also its files' name here and in kernels/
  // kernels/targets/<target>.h that it is compiled with; "portable" is none.
  virtual std::string_view target() const noexcept = 0;
  virtual Pass pass() const noexcept { return Pass::forward; }
  virtual bool dropout() const noexcept { return false; }
  virtual bool deterministic() const noexcept { return true; }
  // Sequences of different lengths; forward also keys and values in pages.
  virtual bool variable_lengths() const noexcept { return false; }
  virtual Support supports(const Problem& problem, const Chip& chip) const = 0;
  virtual double rank(const Problem& problem) const = 0;
  // compute_units: of the device, to have work for each.
  virtual LaunchPlan plan(const Problem& problem, const Chip& chip, int compute_units) const = 0;
  // The numbers that tuned_plan() takes in place of plan()'s own, one for each parameter; none where the family has no choice.
  virtual tuning::Space space(const Problem& /*problem*/, const Chip& /*chip*/, int /*compute_units*/) const { return {}; }
  // Only of values that the space takes.
  virtual LaunchPlan tuned_plan(const Problem& problem, const Chip& chip, int compute_units,
                                std::span<const int> /*values*/) const {
    return plan(problem, chip, compute_units);
  }
};

// Every family with every target, best first among equal ranks.
const std::vector<const Family*>& families();

// The target's tile shapes and their LDS; defined in the families' files.
std::vector<const Family*> prefill_families();
const Family* prefill_wgmma_family();
std::vector<const Family*> short_families();
std::vector<const Family*> decode_families();
const Family* boards_family();
std::vector<const Family*> short_backward_families();
std::vector<const Family*> backward_families();
const Family* backward_atomic_family();
const Family* backward_wgmma_atomic_family();
const Family* backward_wgmma_family();
const Family* prefill_portable_family();
const Family* backward_portable_family();

// The targets with matrix instructions.
struct MatrixTarget {
  std::string_view name;
  int depth;               // dims that an operand of q.k covers
  bool transposed_values;  // V^T in LDS
};
inline constexpr std::array kMatrixTargets{MatrixTarget{"gfx11", 16, true}, MatrixTarget{"gfx12", 16, true},
                                           MatrixTarget{"cdna3", 32, true}, MatrixTarget{"sm80", 32, false}};

// Why fp32 does not take matrix instructions; yes for the other dtypes.
Support takes_matrix_instructions(const Problem& problem);

// A forward launch with a workgroup for every s.block_m query rows of each head: how many these are, and the plan.
int64_t query_tile_workgroups(const Problem& problem, const Specialisation& s);
LaunchPlan query_tile_plan(const Problem& problem, const Specialisation& s);

// Columns of a panel, in which operands of warpgroup products lie: kernels/targets/sm90/target.h.
inline constexpr int64_t kPanelColumns = 64;

// 2^31 - 1 workgroups is what launches take everywhere.
Support grid_fits(int64_t workgroups);
// May a workgroup have as much LDS on this chip?
Support lds_fits(int64_t bytes, const Chip& chip);
// Does a lane have registers for so many accumulators, beside some for the rest? min_waves: AMD, of a SIMD; min_workgroups: NVIDIA,
// of a multiprocessor; of `waves` each.
Support registers_fit(int64_t accumulators, const Chip& chip, int waves, int min_waves, int min_workgroups);

}  // namespace fulmen::gpu
