// kernels/forward/prefill_tma.h: tiles of Hopper's warpgroup products, brought by the tensor memory
// accelerator (TMA).
#include <algorithm>
#include <string>

#include "gpu/launch/mask_bits.h"
#include "gpu/launch/prefill_tma_schedule.h"
#include "gpu/launch/prefill_tma_shapes.h"
#include "gpu/launch/work_tiles.h"
#include "kernels/forward/prefill_tma_layout.h"
#include "kernels/tile/nvidia/register_shares.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V

Specialisation specialisation(const Problem& p, const Target& target, const PrefillTmaShape& shape,
                              TileScheduler scheduler) {
  const int64_t panel = target.panel_columns;
  Specialisation s;
  s.entry = "forward/prefill_tma.h";
  s.target = &target;
  // Products are of 16 dims, two of them, each of whole panels, make up more than 192 of v.
  s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
  s.head_dim_v = static_cast<int>(
      round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * panel : kProductDims));
  s.block_m = kWarpgroupRows * shape.warpgroups;
  s.block_n = shape.block_n;
  s.workgroup = kWarpgroupLanes * (shape.warpgroups + 1);  // one more, of loaders
  s.buffers = shape.buffers;
  s.queries_in_lds = true;
  s.min_workgroups = shape.min_workgroups;
  s.ping_pong = shape.ping_pong && shape.warpgroups > 1;
  s.persistent = static_cast<int>(scheduler);
  s.tensor_maps = true;
  s.shared_heads = shared_heads(p, s.block_m);
  s.lds_bytes = kernels::TmaPrefillLayout::of(static_cast<int>(round_up(s.head_dim, panel)),
                                              static_cast<int>(round_up(s.head_dim_v, panel)),
                                              s.block_m, s.block_n, s.buffers, p.variable_lengths())
                    .total;
  specialise_for(p, s);
  read_mask_as_bits(p, s);
  return s;
}
LaunchPlan plan_of(const Problem& p, const Target& target, const Chip& chip,
                   const PrefillTmaChoice& choice, int compute_units) {
  const Specialisation s = specialisation(p, target, choice.shape, choice.scheduler);
  LaunchPlan plan = query_tile_plan(p, s);
  schedule_tiles(p, chip, choice, compute_units, plan);
  add_mask_bits(p, plan);
  plan.unaligned = std::make_shared<LaunchPlan>(prefill_wgmma_plan(p, *s.target));
  return plan;
}

class PrefillTma final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_tma"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = tma_reads(p); !support.yes) return support;
    if (p.variable_lengths() && has_masks(p))
      return Support::no(
          "it takes a keep_mask, mask_mod or block mask where sequences have one length");
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const PrefillTmaShape& shape = choose_tiles(p, *target().prefill_tma, kUsualComputeUnits).shape;
    if (Support support = takes_pages(p, shape); !support.yes) return support;
    const Specialisation s = specialisation(p, target(), shape, TileScheduler::single_tile);
    if (Support support = takes_mask_bits(s); !support.yes) return support;
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    constexpr PrefillTmaShape kSmallest{
        .warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2};
    return grid_fits(query_tile_workgroups(
        p, specialisation(p, target(), kSmallest, TileScheduler::single_tile)));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, target(), chip, choose_tiles(p, *target().prefill_tma, compute_units),
                   compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const PrefillTmaChoice usual = choose_tiles(p, *target().prefill_tma, compute_units);
    const PrefillTmaShape& shape = usual.shape;
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {
        {"block_m",
         kWarpgroupRows * shape.warpgroups,
         {kWarpgroupRows, 2 * kWarpgroupRows, 3 * kWarpgroupRows, 4 * kWarpgroupRows}},
        {"block_n", shape.block_n, {32, 48, 64, 80, 96, 112, 128, 176}},
        {"buffers", shape.buffers, {2, 3, 4, 6}},
        {"min_workgroups", shape.min_workgroups, {1, 2, 3}},
        {"ping_pong", shape.ping_pong ? 1 : 0, {0, 1}},
        {"persistent", static_cast<int>(usual.scheduler), {0, 1, 2}},
        {"splits_last", usual.last.splits > 1 ? 1 : 0, {0, 1}}};
    space.takes = [this, p, chip, compute_units](std::span<const int> v) -> Support {
      if (p.variable_lengths() &&
          (v[5] != static_cast<int>(TileScheduler::dynamic_persistent) || v[6] != 0))
        return Support::no("sequences' tiles are taken by the tile counter alone");
      if (Support support = takes_pages(p, shape_of_values(v)); !support.yes) return support;
      if (v[6] != 0 &&
          tail_wave(p, shape_of_values(v), slots_of(shape_of_values(v), compute_units)).splits == 1)
        return Support::no("the tail wave of tiles is not worth splitting");
      const Specialisation s =
          specialisation(p, target(), shape_of_values(v), static_cast<TileScheduler>(v[5]));
      if (Support support = takes_mask(p, shape_of_values(v)); !support.yes) return support;
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      const int warpgroups = s.block_m / kWarpgroupRows;
      if (warpgroups == 1 && s.min_workgroups == 1)
        return Support::no("one warpgroup alone has no use for all registers");
      if (warpgroups == 1 && v[4] != 0)
        return Support::no("one warpgroup has none to take turns with");
      constexpr int kRest = 24;
      const int had =
          kernels::RegisterShares::of(warpgroups, s.min_workgroups, kernels::kTmaRegisters)
              .consumer;
      const int needed = s.head_dim_v / 2 + s.block_n / 2 + s.block_n / 4 + kRest;
      if (needed <= had) return {};
      return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " +
                         std::to_string(had));
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    const PrefillTmaShape shape = shape_of_values(v);
    const TailWave last =
        v[6] != 0 ? tail_wave(p, shape, slots_of(shape, compute_units)) : TailWave{};
    return plan_of(p, target(), chip, {shape, static_cast<TileScheduler>(v[5]), last},
                   compute_units);
  }

 private:
  static constexpr int kUsualComputeUnits = 1;  // the tiles of many: the largest
  static PrefillTmaShape shape_of_values(std::span<const int> v) {
    return {v[0] / kWarpgroupRows, v[1], v[2], v[3], v[4] != 0};
  }
};

}  // namespace

const Family* make_prefill_tma(const Target& target) {
  return target.prefill_tma ? new PrefillTma(target) : nullptr;
}

}  // namespace fulmen::gpu
