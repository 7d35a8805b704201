// A family of GPU kernels: which problems it runs on which chip, and how. One file each in this
// folder, listed in families().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"
#include "gpu/launch/specialisation.h"
#include "gpu/targets/chip.h"
#include "tuning/space.h"

namespace fulmen::gpu {

// Hopper's warpgroup: its lanes, and the rows of its products.
inline constexpr int kWarpgroupLanes = 128, kWarpgroupRows = 64;

// Query rows of a KV head: its query heads are packed into tiles.
inline int64_t packed_rows(const Problem& p) { return p.group_size() * p.seqlen_q; }

// Bytes of a key and of its value, where it is not the same.
inline int64_t key_bytes(const Problem& p) {
  return size_of(p.k_dtype) * row_elements(p.k_dtype, p.head_dim) +
         size_of(p.v_dtype) * row_elements(p.v_dtype, p.values_in_keys ? 0 : p.head_dim_v);
}

// The part of the L2 that keys and values may take.
inline constexpr int64_t kL2Bytes = 32 << 20;

// One launch of a plan.
struct KernelLaunch {
  Specialisation specialisation;
  int64_t workgroups = 0;
  bool programmatic_launch = false;  // gpu/driver.h
};

// Fields of kernels::BackwardArguments that follow neither from the problem nor from the pointers.
struct BackwardCounts {
  int bias_parts = 0, run_batches = 0, last_heads = 0, first_blocks = 0, middle_heads = 0,
      adds_in_order = 0, adds_to_zeros = 0, block_slots = 0, last_blocks = 0;
  int64_t query_counters = 0;
};

// What a plan runs: one launch, or two with split keys, or a launch a few gradients.
struct LaunchPlan {
  std::vector<KernelLaunch> launches;
  // Without pointers; the backward kernels' own begin with them.
  kernels::ForwardArguments arguments{};
  BackwardCounts backward;
  // Workspace, in floats from its start: partial results of splits; backward: row numbers and
  // shares, sums of tensors' gradients, parts of the bias's gradient, then sums for dq.
  int64_t partial_out_floats = 0, partial_row_floats = 0;
  // Behind partial results: forward/clear_tile_counter.h, sequences/work_tiles.h.
  int64_t tile_counter_floats = 0;
  // The keep-mask's bits follow: launch/mask_bits.h.
  int64_t mask_rows_words = 0, mask_blocks_words = 0, mask_keys_words = 0, mask_list_words = 0,
          block_states_words = 0;
  // Products in 8 bits, at the very start: kernels/tile/{fp8,int8}_workspace.h.
  int64_t code_floats = 0;
  int64_t row_statistics_floats = 0, row_share_floats = 0, tensor_sum_floats = 0,
          bias_partial_floats = 0, query_sum_floats = 0;
  int num_splits = 0;
  // The launches read k alone, of which v is the first dims (Problem::values_in_keys).
  bool values_in_keys = false;
  // What runs where pointers are no multiples of 16, and where v is not k's memory after all. Null:
  // the same launches, compiled without 16-byte vectors.
  std::shared_ptr<const LaunchPlan> unaligned;
};

// The widest heads that most tiles are made for.
constexpr int64_t kUsualHeadDim = 256;
inline bool has_wide_heads(const Problem& p) {
  return p.head_dim > kUsualHeadDim || p.head_dim_v > kUsualHeadDim;
}

// Dims of q and k, and of v.
struct HeadDims {
  int64_t qk = kUsualHeadDim, v = kUsualHeadDim;
};

class Family {
 public:
  explicit Family(const Target& target) : target_(target) {}
  virtual ~Family() = default;
  // "prefill": also its files' name here and in kernels/.
  virtual std::string_view name() const noexcept = 0;
  // What it is compiled for, and whose tiles it has.
  const Target& target() const noexcept { return target_; }
  virtual Pass pass() const noexcept { return Pass::forward; }
  virtual bool dropout() const noexcept { return false; }
  virtual bool deterministic() const noexcept { return true; }
  // Sequences of different lengths; forward also keys and values in pages.
  virtual bool variable_lengths() const noexcept { return false; }
  // Keys and values in formats of their own, and their scales: Problem::quantized_kv().
  virtual bool quantized_kv() const noexcept { return false; }
  // Products of this precision.
  virtual bool has_products(Precision precision) const noexcept {
    return precision == Precision::exact;
  }
  // score_mod, mask_mod and block masks: supports() asks takes_functions() for the rest.
  virtual bool score_functions() const noexcept { return false; }
  // The widest head that its tiles are made for; before that number, what serves() says of others.
  virtual HeadDims most_head_dims() const noexcept { return {}; }
  virtual std::string_view why_no_wider() const noexcept {
    return "its tiles are made for heads of up to ";
  }
  // Yes if it runs the problem on the chip, else why not.
  Support serves(const Problem& problem, const Chip& chip) const;
  // compute_units: of the device, to have work for each.
  virtual LaunchPlan plan(const Problem& problem, const Chip& chip, int compute_units) const = 0;
  // The numbers that tuned_plan() takes in place of plan()'s own, one for each parameter; none
  // where the family has no choice.
  virtual tuning::Space space(const Problem& /*problem*/, const Chip& /*chip*/,
                              int /*compute_units*/) const {
    return {};
  }
  // Only of values that the space takes.
  virtual LaunchPlan tuned_plan(const Problem& problem, const Chip& chip, int compute_units,
                                std::span<const int> /*values*/) const {
    return plan(problem, chip, compute_units);
  }

 private:
  // What serves() says of heads that are no wider than most_head_dims(): tiles are looked up there.
  virtual Support supports(const Problem& problem, const Chip& chip) const = 0;

  const Target& target_;
};

// Every family with every target, best first among equal ranks: gpu/choice.h.
const std::vector<const Family*>& families();
// The same for other targets than those of the list. A family that is written in terms of what the
// target has, but that has no tiles for it, is one that supports nothing, and says why.
std::vector<const Family*> make_families(std::span<const Target* const> targets);

// A family for a target; null where the target has no tiles for it. Alive as long as the process.
const Family* make_prefill(const Target& target);
const Family* make_prefill_wgmma(const Target& target);
const Family* make_prefill_tma(const Target& target);
const Family* make_prefill_fp8(const Target& target);
const Family* make_prefill_e4m3(const Target& target);
const Family* make_prefill_int8(const Target& target);
const Family* make_prefill_portable(const Target& target);
const Family* make_short(const Target& target);
const Family* make_decode(const Target& target);
const Family* make_decode_tma(const Target& target);
const Family* make_decode_latent(const Target& target);
const Family* make_decode_portable(const Target& target);
const Family* make_boards(const Target& target);
const Family* make_short_backward(const Target& target);
const Family* make_backward(const Target& target);
const Family* make_backward_atomic(const Target& target);
const Family* make_backward_wgmma_atomic(const Target& target);
const Family* make_backward_wgmma(const Target& target);
const Family* make_backward_tma(const Target& target);
const Family* make_backward_portable(const Target& target);

// The plan of prefill_wgmma.h with its usual tiles: what prefill_tma.h falls back on.
LaunchPlan prefill_wgmma_plan(const Problem& problem, const Target& target);
// The plan of prefill.h: the same where k and v are quantized.
LaunchPlan prefill_plan(const Problem& problem, const Target& target, const Chip& chip,
                        int compute_units);

// A tensor map has no stride of 0, and none below. Of a dimension with one element the stride says
// nothing.
Support tma_takes_strides(const char* name, const TensorSpec& spec, const Problem::Shape& shape);
// Yes if the TMA can read q, k and v, and store out, or read dout of the backward pass; else why
// not. Pointers are checked when a plan runs.
Support tma_reads(const Problem& problem);
// Yes if boxes of the TMA fill pages of that size, or if there are none.
Support tma_takes_pages(const Problem& problem);
// Yes for fp16 and bf16; fp32 is multiplied by parts, in families of its own (launch/fp32.h).
Support takes_matrix_instructions(const Problem& problem);

// A forward launch with a workgroup for every s.block_m query rows of each head: how many these
// are, and the plan.
int64_t query_tile_workgroups(const Problem& problem, const Specialisation& s);
LaunchPlan query_tile_plan(const Problem& problem, const Specialisation& s);

// 2^31 - 1 workgroups is what launches take everywhere.
Support grid_fits(int64_t workgroups);
// Yes if a workgroup can have as much LDS on this chip; else how much it has.
Support lds_fits(int64_t bytes, const Chip& chip);
// Yes if tiles of so many keys are whole operands of the products of probabilities and values.
Support keys_fill_products(int block_n, const Target& target);
// Yes if a lane has registers for so many accumulators, beside some for the rest; else why not.
// min_waves: AMD, of a SIMD; min_workgroups: NVIDIA, of a multiprocessor; of `waves` each.
Support registers_fit(int64_t accumulators, const Chip& chip, int waves, int min_waves,
                      int min_workgroups);

}  // namespace fulmen::gpu
