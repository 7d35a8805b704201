// kernels/forward/prefill_portable.h: the path without matrix instructions.
#include "gpu/launch/family.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/square.h"

namespace fulmen::gpu {
namespace {

class Portable final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    return grid_fits(workgroups(p));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    Specialisation s;
    s.entry = "forward/prefill_portable.h";
    specialise_square(p, chip, false, 1, s);
    LaunchPlan plan;
    plan.launches.push_back({s, workgroups(p)});
    plan.arguments = arguments_of(p);
    plan.arguments.row_tiles = static_cast<int>(tiles_of(p.seqlen_q, square_rows(p)));
    add_mask_bits(p, plan);
    return plan;
  }

 private:
  static int64_t workgroups(const Problem& p) {
    return tiles_of(p.seqlen_q, square_rows(p)) * p.batch * p.num_heads;
  }
};

}  // namespace

const Family* make_prefill_portable(const Target& target) {
  return target.portable ? new Portable(target) : nullptr;
}

}  // namespace fulmen::gpu
