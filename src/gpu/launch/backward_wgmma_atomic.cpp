// kernels/backward_wgmma_atomic.h: tiles of Hopper's warpgroup products.
#include <algorithm>

#include "gpu/launch/backward.h"
#include "kernels/layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kLanes = 256;  // two warpgroups

class BackwardWgmmaAtomic final : public Family {
 public:
  std::string_view name() const noexcept override { return "backward_wgmma_atomic"; }
  std::string_view target() const noexcept override { return "sm90"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool deterministic() const noexcept override { return false; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.dbias.present) return Support::no("it has no dbias");
    if (!p.dq.present || !(p.dk.present || p.dv.present)) {
      return Support::no("dq alone, and dk and dv without it, need no atomics");
    }
    if (Support support = lds_fits(specialisation(p).lds_bytes, chip); !support.yes) return support;
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  double rank(const Problem& p) const override {
    // Few keys, and dims that fill half of a panel's columns, are better served by narrower products.
    constexpr int64_t kFewKeys = 64;
    if (p.seqlen_k <= kFewKeys) return 17;
    return std::max(p.head_dim, p.head_dim_v) > kPanelColumns / 2 ? 24 : 21;
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int compute_units) const override {
    const Specialisation s = specialisation(p);
    BackwardPlan plan(p, compute_units);
    plan.add_row_numbers(s);
    plan.add_with_atomics(s, s.outputs);
    plan.add_sinks(s);
    return plan.take();
  }

 private:
  static Specialisation specialisation(const Problem& p) {
    // Above, the sums of 64 keys take the registers of two warpgroups.
    constexpr int64_t kMostOwnDims = 128;
    Specialisation s;
    s.entry = "backward_wgmma_atomic.h";
    s.target = "sm90";
    s.dim_groups = std::max(p.head_dim, p.head_dim_v) > kMostOwnDims ? 2 : 1;
    const int64_t multiple = kPanelColumns * s.dim_groups;
    s.head_dim = static_cast<int>(round_up(p.head_dim, multiple));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, multiple));
    s.block_m = 128 / s.dim_groups;
    s.block_n = 64;
    s.workgroup = kLanes;
    s.outputs = kGivesDq | (p.dk.present ? kGivesDk : 0) | (p.dv.present ? kGivesDv : 0);
    // Of tiles of queries, as measured on an H200: one on its way while one is computed, or two. Narrow heads need one more, where
    // one warpgroup is behind the other.
    s.buffers = s.head_dim <= kPanelColumns ? 4 : s.dim_groups == 1 && (p.window_left >= 0 || p.window_right >= 0) ? 3 : 2;
    s.lds_bytes = kernels::WarpgroupAtomicLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n, s.buffers).total;
    specialise_for(p, s);
    s.sinks = false;  // they are in the log-sum-exp
    return s;
  }
};

}  // namespace

const Family* backward_wgmma_atomic_family() {
  static const BackwardWgmmaAtomic kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
