// kernels/backward/backward_portable.h: gradients without matrix instructions.
#include "gpu/launch/backward.h"
#include "gpu/launch/square.h"

namespace fulmen::gpu {
namespace {

// Sums of dk and dv, of so many dims each, have room in registers.
constexpr int64_t kMostDimsOfBoth = 128;

class PortableBackward final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const int64_t rows = (std::max(p.seqlen_q, p.seqlen_k) + 15) / 16;
    return grid_fits(rows * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation s = backward_portable_kernel(p, chip);
    BackwardPlan plan(p, compute_units);
    plan.add_row_statistics(s);
    plan.add_rows(s, p.dq.present ? kGivesDq : 0);
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    if (std::max(p.head_dim, p.head_dim_v) > kMostDimsOfBoth) {
      plan.add_rows(s, dk);
      plan.add_rows(s, dv);
    } else {
      plan.add_rows(s, dk | dv);
    }
    plan.add_bias(s, kGivesDbias);
    plan.add_sinks(s);
    plan.add_tensor_gradients(s, chip);
    return plan.take();
  }
};

}  // namespace

Specialisation backward_portable_kernel(const Problem& p, const Chip& chip) {
  Specialisation s;
  s.entry = "backward/backward_portable.h";
  specialise_square(p, chip, true, 1, s);
  s.plain_scale = false;  // nothing depends on it
  return s;
}

const Family* make_backward_portable(const Target& target) {
  return target.portable ? new PortableBackward(target) : nullptr;
}

}  // namespace fulmen::gpu
