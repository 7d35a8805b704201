// kernels/forward/prefill_wgmma.h: warpgroup products.
#include <algorithm>

#include "gpu/launch/mask_bits.h"
#include "kernels/forward/prefill_wgmma_layout.h"
#include "kernels/tile/nvidia/register_shares.h"

namespace fulmen::gpu {
namespace {

Specialisation specialisation(const Problem& p, const Target& target,
                              const PrefillWgmmaShape& shape) {
  Specialisation s;
  s.entry = "forward/prefill_wgmma.h";
  s.target = &target;
  s.head_dim = static_cast<int>(round_up(p.head_dim, target.panel_columns));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, target.panel_columns));
  s.block_m = kWarpgroupRows * shape.warpgroups;
  s.block_n = shape.block_n;
  s.workgroup = kWarpgroupLanes * (shape.warpgroups + 1);  // a producer
  s.buffers = 2;
  s.queries_in_lds = true;
  s.min_workgroups = shape.min_workgroups;
  s.lds_bytes =
      kernels::WarpgroupPrefillLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n).total;
  specialise_for(p, s);
  read_mask_as_bits(p, s);
  return s;
}

const PrefillWgmmaShape& shape_for(const Problem& p, const Target& target) {
  return target.prefill_wgmma->shape_for(std::max(p.head_dim, p.head_dim_v), p.seqlen_k);
}

LaunchPlan plan_of(const Problem& p, const Specialisation& s) {
  LaunchPlan plan = query_tile_plan(p, s);
  add_mask_bits(p, plan);
  return plan;
}

class ForwardWgmma final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_wgmma"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const Specialisation s = specialisation(p);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(query_tile_workgroups(p, s));
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/) const override {
    return plan_of(p, specialisation(p));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const PrefillWgmmaShape& usual = shape_for(p);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"block_m",
                         kWarpgroupRows * usual.warpgroups,
                         {kWarpgroupRows, 2 * kWarpgroupRows, 3 * kWarpgroupRows}},
                        {"block_n", usual.block_n, {64, 128}},
                        {"min_workgroups", usual.min_workgroups, {1, 2, 3}}};
    space.takes = [this, p, chip](std::span<const int> v) -> Support {
      const Specialisation s = specialisation(p, shape_of(v));
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      // As the kernel shares out what a multiprocessor has; setmaxnreg gives up to 256 a lane.
      constexpr int kMostRegisters = 256, kRest = 24;
      const int had = kernels::RegisterShares::of(s.block_m / kWarpgroupRows, s.min_workgroups,
                                                  kernels::kCopyingRegisters)
                          .consumer;
      const int needed = (s.head_dim_v + s.block_n) / 2 + kRest;
      if (needed <= had && had <= kMostRegisters) return {};
      return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " +
                         std::to_string(had) + ", up to " + std::to_string(kMostRegisters) +
                         " are given");
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, specialisation(p, shape_of(v)));
  }

 private:
  static PrefillWgmmaShape shape_of(std::span<const int> v) {
    return {.max_head_dim = 256,
            .warpgroups = v[0] / kWarpgroupRows,
            .block_n = v[1],
            .min_workgroups = v[2]};
  }
  const PrefillWgmmaShape& shape_for(const Problem& p) const { return gpu::shape_for(p, target()); }
  Specialisation specialisation(const Problem& p) const { return specialisation(p, shape_for(p)); }
  Specialisation specialisation(const Problem& p, const PrefillWgmmaShape& shape) const {
    return gpu::specialisation(p, target(), shape);
  }
};

}  // namespace

LaunchPlan prefill_wgmma_plan(const Problem& problem, const Target& target) {
  return plan_of(problem, specialisation(problem, target, shape_for(problem, target)));
}

const Family* make_prefill_wgmma(const Target& target) {
  return target.prefill_wgmma ? new ForwardWgmma(target) : nullptr;
}

}  // namespace fulmen::gpu
