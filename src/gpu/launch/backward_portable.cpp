// kernels/backward/backward_portable.h: gradients without matrix instructions.
#include "gpu/launch/backward.h"
#include "gpu/targets/portable.h"

namespace fulmen::gpu {
namespace {

class PortableBackward final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    const int64_t rows = (std::max(p.seqlen_q, p.seqlen_k) + 15) / 16;
    return grid_fits(rows * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int compute_units) const override {
    const Specialisation s = backward_portable_kernel(p);
    BackwardPlan plan(p, compute_units);
    plan.add_row_statistics(s);
    plan.add_rows(s, p.dq.present ? kGivesDq : 0);
    plan.add_rows(s, (p.dk.present ? kGivesDk : 0) | (p.dv.present ? kGivesDv : 0));
    plan.add_bias(s, kGivesDbias);
    plan.add_sinks(s);
    return plan.take();
  }
};

}  // namespace

Specialisation backward_portable_kernel(const Problem& p) {
  const auto& [block_m, block_n, chunk, workgroup] = *kPortable.portable;
  Specialisation s;
  s.entry = "backward/backward_portable.h";
  s.head_dim = static_cast<int>(round_up(p.head_dim, chunk));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, chunk));
  s.block_m = block_m;
  s.block_n = block_n;
  s.workgroup = workgroup;
  // Two chunks, rows one longer than a tile, P and dS.
  s.lds_bytes = 4 * ((2 * chunk + 1) * (block_m + 1) + 2 * block_m * (block_n + 1));
  specialise_for(p, s);
  s.whole_rows = s.exact_dims = s.whole_bias = s.plain_scale = false;  // nothing depends on them
  return s;
}

const Family* make_backward_portable(const Target& target) {
  return target.portable ? new PortableBackward(target) : nullptr;
}

}  // namespace fulmen::gpu
