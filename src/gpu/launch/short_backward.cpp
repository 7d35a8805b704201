// kernels/backward/short_backward.h: up to 64 queries and keys, all gradients in one launch.
#include <algorithm>

#include "gpu/launch/backward.h"
#include "kernels/backward/short_backward_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kMostRows = 64;

class ShortBackward final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "short_backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.batch == 0 || p.seqlen_q == 0 || p.seqlen_k == 0)
      return Support::no("there is nothing to compute, only zeros to write");
    if (std::max(p.seqlen_q, p.seqlen_k) > kMostRows) {
      return Support::no("seqlen_q is " + std::to_string(p.seqlen_q) + " and seqlen_k " +
                         std::to_string(p.seqlen_k) + ", at most " + std::to_string(kMostRows) +
                         " are served");
    }
    if (shape_for(p) == nullptr) {
      return Support::no("head_dim is " + std::to_string(std::max(p.head_dim, p.head_dim_v)) +
                         ", tiles of " + std::string(target().name) + " have up to " +
                         std::to_string(most_head_dim()));
    }
    if (p.group_size() != 1)
      return Support::no(
          "num_kv_heads differs from num_heads: a workgroup has one head's dk and dv");
    if (p.dsinks.present) return Support::no("dsinks needs each row's numbers in memory");
    if (p.dbias.present && p.dbias.strides[1] == 0 && p.dbias.strides[0] != 0) {
      return Support::no("dbias is a sum over heads, but not over the batch, which its parts are");
    }
    const Specialisation s = specialisation(p, chip);
    if (shape_for(p)->whole && !(s.whole_tiles && s.whole_rows && s.exact_dims)) {
      return Support::no("registers of " + std::string(target().name) +
                         " suffice for sequences of 32 or 64 without a window, head_dim 32 or 64, "
                         "and rows at multiples of 16 bytes");
    }
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation s = specialisation(p, chip);
    return plan_of(p, compute_units, s, run_batches(p, s, std::max(1, compute_units)));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation usual = specialisation(p, chip);
    const int run = static_cast<int>(run_batches(p, usual, std::max(1, compute_units)));
    constexpr int kLongestRun = 64;
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"buffers", usual.buffers, {1}},
                        {"min_workgroups", usual.min_workgroups, {}},
                        {"run_batches", run, {1}}};
    // Boards come through registers, of which the compiler is told another way, on AMD's chips.
    if (chip.vendor == Vendor::nvidia) {
      space.parameters[0].values = {1, 2};
      space.parameters[1].values = {1, 2, 3, 4};
    }
    for (int n = 2; n <= std::min<int64_t>(p.batch, kLongestRun); n *= 2)
      space.parameters[2].values.push_back(n);
    tuning::include_usual(space);
    space.takes = [this, chip, usual](std::span<const int> v) -> Support {
      if (v[0] == usual.buffers && v[1] == usual.min_workgroups) return {};
      Specialisation s = with(usual, v);
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      // Probabilities, their gradients, and the sums for dq, dk and dv.
      const int64_t each = int64_t{16} * (2 * s.block_n + 2 * s.head_dim + s.head_dim_v);
      return registers_fit(each / chip.wave_size, chip, s.workgroup / chip.wave_size, 1,
                           s.min_workgroups);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, compute_units, with(specialisation(p, chip), v), v[2]);
  }

 private:
  static LaunchPlan plan_of(const Problem& p, int compute_units, const Specialisation& s,
                            int64_t run) {
    BackwardPlan plan(p, compute_units);
    plan.add_runs(s, run);
    return plan.take();
  }
  Specialisation with(Specialisation s, std::span<const int> v) const {
    s.buffers = v[0];
    s.min_workgroups = v[1];
    s.lds_bytes = lds_bytes(s);
    return s;
  }
  // Multiples of 32 on every chip: the pieces of 48 dims are shared unevenly, which takes
  // registers.
  static int dims(int64_t dim) { return static_cast<int>(round_up(dim, 32)); }
  int most_head_dim() const {
    int most = 0;
    for (const ShortBackwardShape& shape : target().short_backward->shapes)
      most = std::max(most, shape.max_head_dim);
    return most;
  }
  const ShortBackwardShape* shape_for(const Problem& p) const {
    for (const ShortBackwardShape& shape : target().short_backward->shapes) {
      if (dims(std::max(p.head_dim, p.head_dim_v)) <= shape.max_head_dim) return &shape;
    }
    return nullptr;
  }
  // As many workgroups as run at once, so that all end together; where heads alone are many,
  // several times that. Shorter runs where the busiest compute unit then processes fewer batches.
  static int64_t run_batches(const Problem& p, const Specialisation& s, int compute_units) {
    constexpr int64_t kTimes = 4;
    const int64_t at_once = int64_t{compute_units} * s.min_workgroups;
    const int64_t runs = p.num_heads * kTimes <= at_once ? at_once / p.num_heads
                                                         : tiles_of(kTimes * at_once, p.num_heads);
    // Estimated finish time of the busiest compute unit, which runs `min_workgroups` at once, in
    // halves of a workgroup's share of a full wave. A partial tail wave costs more than its share,
    // because fewer workgroups hide each other's latency.
    const auto time = [&](int64_t length) {
      const int64_t most = tiles_of(tiles_of(p.batch, length) * p.num_heads, compute_units);
      const int64_t rest = most % s.min_workgroups;
      return length * (2 * (most / s.min_workgroups) * s.min_workgroups +
                       (rest > 0 ? s.min_workgroups + rest : 0));
    };
    const int64_t longest = tiles_of(p.batch, runs);
    int64_t best = longest;
    for (int64_t length = longest - 1; length >= (longest + 1) / 2; --length) {
      if (time(length) < time(best)) best = length;
    }
    return best;
  }
  int lds_bytes(const Specialisation& s) const {
    return kernels::ShortBackwardLayout::of(
               {.transposed_depth = target().transposed_depth(),
                .reads_transposed = target().reads_transposed,
                .head_dim = s.head_dim,
                .head_dim_v = s.head_dim_v,
                .block = s.block_n,
                .buffers = s.buffers,
                .bias = !target().transposed_values && s.bias > 0 && !s.batch_bias,
                .out = (s.outputs & kGivesDbias) == 0 || s.dropout || s.softcap})
        .total;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip) const {
    const ShortBackwardShape& shape = *shape_for(p);
    Specialisation s;
    s.entry = "backward/short_backward.h";
    s.target = &target();
    s.head_dim = dims(p.head_dim);
    s.head_dim_v = dims(p.head_dim_v);
    s.block_m = s.block_n =
        std::max(p.seqlen_q, p.seqlen_k) > kMostRows / 2 ? kMostRows : kMostRows / 2;
    s.workgroup = s.block_m / 16 * chip.wave_size;
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    s.outputs = outputs_of(p) | (p.dbias.present ? kGivesDbias : 0);
    specialise_for(p, s);
    s.whole_tiles = p.seqlen_q == s.block_m && p.seqlen_k == s.block_n && !s.band;
    s.batch_bias = p.bias.present && p.bias.strides[0] != 0;
    s.batch_dbias = p.dbias.present && p.dbias.strides[0] != 0;
    s.lds_bytes = lds_bytes(s);
    if (s.lds_bytes > chip.lds_bytes && s.buffers == 2) {
      s.buffers = 1;
      s.lds_bytes = lds_bytes(s);
    }
    return s;
  }
};

}  // namespace

const Family* make_short_backward(const Target& target) {
  return target.short_backward ? new ShortBackward(target) : nullptr;
}

}  // namespace fulmen::gpu
