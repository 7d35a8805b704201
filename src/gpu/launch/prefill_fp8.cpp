// kernels/forward/prefill_fp8.h: prefill_tma.h's tiles, multiplied in 8 bits.
#include <algorithm>

#include "gpu/launch/prefill_tma_space.h"
#include "kernels/forward/prefill_tma_layout.h"
#include "kernels/tile/fp8_workspace.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kFp8Depth = 32;  // of a product
constexpr int64_t kFp8Dims = 16, kMostFp8Dims = 192, kTwoProducts = 128;

Specialisation fp8_specialisation(const Problem& p, const Target& target,
                                  const PrefillTmaShape& shape, TileScheduler scheduler) {
  const int64_t panel = target.panel_columns;
  Specialisation s;
  s.entry = "forward/prefill_fp8.h";
  s.target = &target;
  s.head_dim = static_cast<int>(round_up(p.head_dim, kFp8Depth));
  s.head_dim_v = static_cast<int>(
      round_up(p.head_dim_v, p.head_dim_v > kMostFp8Dims ? kTwoProducts : kFp8Dims));
  set_shape(shape, scheduler, s);
  s.precision = static_cast<int>(Precision::fp8);
  s.lds_bytes = kernels::TmaPrefillLayout::of_fp8(s.head_dim, s.head_dim_v,
                                                  static_cast<int>(round_up(s.head_dim_v, panel)),
                                                  s.block_m, s.block_n, s.buffers)
                    .total;
  specialise_for(p, s);
  return s;
}

kernels::Fp8Workspace workspace_of(const Problem& p, const Specialisation& s) {
  return kernels::Fp8Workspace::of(p.batch, p.num_heads, p.num_kv_heads, p.seqlen_q, p.seqlen_k,
                                   s.head_dim, static_cast<int>(p.head_dim_v), s.block_n);
}

// A launch that writes codes: of the products' tiles, by which they are laid out.
KernelLaunch code_launch(const Specialisation& products, std::string_view entry,
                         int64_t workgroups) {
  constexpr int kLanes = 256, kWaveBytes = 4;
  Specialisation s = helper_kernel(products, entry, kLanes);
  s.target = products.target;
  s.exact_dims = products.exact_dims;
  s.band = products.band;
  s.precision = products.precision;
  s.lds_bytes = kLanes / 32 * kWaveBytes;
  s.splits = s.sinks = 0;
  return {s, workgroups};
}

LaunchPlan fp8_plan(const Problem& p, const Target& target, const Chip& chip,
                    const PrefillTmaChoice& choice, int compute_units) {
  const Specialisation s = fp8_specialisation(p, target, choice.shape, choice.scheduler);
  LaunchPlan plan = query_tile_plan(p, s);
  schedule_tiles(p, chip, choice, compute_units, plan);
  const kernels::Fp8Workspace w = workspace_of(p, s);
  plan.code_floats = w.total / static_cast<int64_t>(sizeof(float));
  const int64_t heads = p.batch * p.num_heads, kv_heads = p.batch * p.num_kv_heads;
  const bool empty = plan.launches.front().workgroups == 0;
  const int64_t queries = heads * w.query_blocks, parts = kv_heads * w.parts,
                keys = kv_heads * tiles_of(p.seqlen_k, kernels::kFp8Queries),
                panels = kv_heads * w.panels;
  plan.launches.insert(
      plan.launches.begin(),
      {code_launch(s, "forward/fp8_query_codes.h", empty ? 0 : queries + 2 * parts),
       code_launch(s, "forward/fp8_key_codes.h", empty ? 0 : keys + panels)});
  return plan;
}

class PrefillFp8 final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_fp8"; }
  bool has_products(Precision precision) const noexcept override {
    return precision == Precision::fp8;
  }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0)
      return Support::no("the TMA reads tensors that have a row");
    if (p.bias.present || p.alibi_slopes.present || has_masks(p) || has_score_mod(p))
      return Support::no(
          "its products in 8 bits take causal masks, windows, a softcap and sinks, no bias, ALiBi "
          "slopes, masks or score functions");
    if (Support support = tma_takes_strides("out", p.out, p.out_shape()); !support.yes)
      return support;
    const Specialisation s = fp8_specialisation(
        p, target(), choose_fp8(p, kUsualComputeUnits).shape, TileScheduler::single_tile);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    const int64_t keys = p.batch * p.num_kv_heads * tiles_of(p.seqlen_k, kFp8Depth);
    return grid_fits(std::max(2 * query_tile_workgroups(p, s), 2 * keys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return fp8_plan(p, target(), chip, choose_fp8(p, compute_units), compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters =
        parameters_of(choose_fp8(p, compute_units), {.most_warpgroups = 3,
                                                     .block_n = {32, 64, 96, 128, 192},
                                                     .buffers = {2, 3, 4},
                                                     .min_workgroups = {1, 2}});
    space.takes = [this, p, chip, compute_units](std::span<const int> v) -> Support {
      if (Support support = takes_splits(p, v, compute_units); !support.yes) return support;
      const PrefillTmaShape shape = shape_of_values(v);
      constexpr int kRest = 36;
      return tiles_fit(shape, fp8_specialisation(p, target(), shape, scheduler_of_values(v)), chip,
                       shape.block_n / 8 + kRest);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return fp8_plan(p, target(), chip, choice_of_values(p, v, compute_units), compute_units);
  }

 private:
  static constexpr int kUsualComputeUnits = 1;  // the tiles of many: the largest
  PrefillTmaChoice choose_fp8(const Problem& p, int compute_units) const {
    constexpr int kFewKeys = 64;
    PrefillTmaChoice choice = choose_tiles(p, *target().prefill_fp8, compute_units);
    // Beside the softcap's registers larger tiles spill.
    if (p.softcap > 0) {
      choice.shape.block_n = std::min(choice.shape.block_n, kFewKeys);
      choice.last = tail_wave(p, choice.shape, slots_of(choice.shape, compute_units));
    }
    return choice;
  }
};

}  // namespace

const Family* make_prefill_fp8(const Target& target) {
  return target.prefill_fp8 ? new PrefillFp8(target) : nullptr;
}

}  // namespace fulmen::gpu
