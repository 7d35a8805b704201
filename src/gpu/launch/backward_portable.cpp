// kernels/backward/backward_portable.h: gradients without matrix instructions.
#include "gpu/launch/backward.h"

namespace fulmen::gpu {
namespace {

constexpr int kBlock = 64, kChunk = 32, kWorkgroup = 256;

class PortableBackward final : public Family {
 public:
  std::string_view name() const noexcept override { return "backward"; }
  std::string_view target() const noexcept override { return "portable"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    const int64_t rows = (std::max(p.seqlen_q, p.seqlen_k) + 15) / 16;
    return grid_fits(rows * p.batch * p.num_heads);
  }
  double rank(const Problem& /*problem*/) const override { return 10; }
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
  Specialisation s;
  s.entry = "backward/backward_portable.h";
  s.head_dim = static_cast<int>(round_up(p.head_dim, kChunk));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, kChunk));
  s.block_m = s.block_n = kBlock;
  s.workgroup = kWorkgroup;
  // Two chunks, rows one longer than a tile, P and dS.
  s.lds_bytes = 4 * ((2 * kChunk + 1) * (kBlock + 1) + 2 * kBlock * (kBlock + 1));
  specialise_for(p, s);
  s.whole_rows = s.exact_dims = s.whole_bias = s.plain_scale = false;  // nothing depends on them
  return s;
}

const Family* backward_portable_family() {
  static const PortableBackward kPortable;
  return &kPortable;
}

}  // namespace fulmen::gpu
