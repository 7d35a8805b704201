// kernels/forward/prefill_tma.h: tiles of Hopper's warpgroup products, brought by the tensor memory
// accelerator (TMA).
#include "gpu/launch/kv_numbers.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/prefill_tma_schedule.h"
#include "gpu/launch/prefill_tma_shapes.h"
#include "gpu/launch/prefill_tma_space.h"
#include "gpu/launch/quantized.h"
#include "gpu/launch/work_tiles.h"
#include "kernels/forward/prefill_tma_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V

Specialisation specialisation(const Problem& problem, const Target& target,
                              const PrefillTmaShape& shape, TileScheduler scheduler) {
  const Problem p = in_numbers(problem);
  const int64_t panel = target.panel_columns;
  Specialisation s;
  s.entry = "forward/prefill_tma.h";
  s.target = &target;
  // Products are of 16 dims, two of them, each of whole panels, make up more than 192 of v.
  s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
  s.head_dim_v = static_cast<int>(
      round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * panel : kProductDims));
  set_shape(shape, scheduler, s);
  s.shares_tiles = shared_heads(p, s.block_m) > 1;
  s.lds_bytes = kernels::TmaPrefillLayout::of(static_cast<int>(round_up(s.head_dim, panel)),
                                              static_cast<int>(round_up(s.head_dim_v, panel)),
                                              s.block_m, s.block_n, s.buffers, p.variable_lengths(),
                                              has_token_scales(problem.k_scale),
                                              has_token_scales(problem.v_scale))
                    .total;
  specialise_for(p, s);
  read_mask_as_bits(p, s);
  specialise_numbers(problem, s);
  return s;
}
LaunchPlan plan_of(const Problem& problem, const Target& target, const Chip& chip,
                   const PrefillTmaChoice& choice, int compute_units) {
  const Problem p = in_numbers(problem);
  const Specialisation s = specialisation(problem, target, choice.shape, choice.scheduler);
  LaunchPlan plan = query_tile_plan(p, s);
  schedule_tiles(p, chip, choice, compute_units, plan);
  add_mask_bits(p, plan);
  add_kv_numbers(problem, plan);
  plan.unaligned = std::make_shared<LaunchPlan>(
      problem.quantized_kv() ? prefill_plan(problem, *target.extends, chip, compute_units)
                             : prefill_wgmma_plan(p, *s.target));
  return plan;
}

class PrefillTma final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_tma"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  Support supports(const Problem& problem, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(problem); !support.yes) return support;
    if (Support support = writes_numbers(problem, target()); !support.yes) return support;
    const Problem p = in_numbers(problem);
    if (Support support = tma_reads(p); !support.yes) return support;
    if (p.variable_lengths() && has_masks(p))
      return Support::no(
          "it takes a keep_mask, mask_mod or block mask where sequences have one length");
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const PrefillTmaShape& shape = choose_tiles(p, *target().prefill_tma, kUsualComputeUnits).shape;
    if (Support support = takes_pages(p, shape); !support.yes) return support;
    const Specialisation s = specialisation(problem, target(), shape, TileScheduler::single_tile);
    if (Support support = takes_mask_bits(s); !support.yes) return support;
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    constexpr PrefillTmaShape kSmallest{
        .warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2};
    return grid_fits(query_tile_workgroups(
        p, specialisation(problem, target(), kSmallest, TileScheduler::single_tile)));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, target(), chip,
                   choose_tiles(in_numbers(p), *target().prefill_tma, compute_units),
                   compute_units);
  }
  tuning::Space space(const Problem& problem, const Chip& chip, int compute_units) const override {
    const Problem p = in_numbers(problem);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = parameters_of(choose_tiles(p, *target().prefill_tma, compute_units),
                                     {.most_warpgroups = 4,
                                      .block_n = {32, 48, 64, 80, 96, 112, 128, 176},
                                      .buffers = {2, 3, 4, 6},
                                      .min_workgroups = {1, 2, 3}});
    space.takes = [this, problem, p, chip, compute_units](std::span<const int> v) -> Support {
      const PrefillTmaShape shape = shape_of_values(v);
      const TileScheduler scheduler = scheduler_of_values(v);
      if (p.variable_lengths() &&
          (scheduler != TileScheduler::dynamic_persistent || splits_last(v)))
        return Support::no("sequences' tiles are taken by the tile counter alone");
      if (Support support = takes_pages(p, shape); !support.yes) return support;
      if (Support support = takes_splits(p, v, compute_units); !support.yes) return support;
      if (Support support = takes_mask(p, shape); !support.yes) return support;
      constexpr int kRest = 24;
      return tiles_fit(shape, specialisation(problem, target(), shape, scheduler), chip,
                       shape.block_n / 4 + kRest);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, target(), chip, choice_of_values(in_numbers(p), v, compute_units),
                   compute_units);
  }

 private:
  static constexpr int kUsualComputeUnits = 1;  // the tiles of many: the largest
};

}  // namespace

const Family* make_prefill_tma(const Target& target) {
  return target.prefill_tma ? new PrefillTma(target) : nullptr;
}

}  // namespace fulmen::gpu
