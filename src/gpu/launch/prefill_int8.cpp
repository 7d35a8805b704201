// kernels/forward/prefill_int8.h: prefill.h's tiles, with q k^T in int8.
#include <algorithm>
#include <span>

#include "gpu/launch/prefill_space.h"
#include "kernels/tile/int8_workspace.h"

namespace fulmen::gpu {
namespace {

kernels::Int8Workspace code_workspace_of(const Problem& p, const Specialisation& s) {
  return kernels::Int8Workspace::of(p.batch, p.num_heads, p.num_kv_heads, p.seqlen_q, p.seqlen_k,
                                    s.head_dim);
}

// A launch that writes what the products read.
KernelLaunch int8_launch(const Specialisation& products, std::string_view entry, int workgroup,
                         int lds_bytes, int64_t workgroups) {
  Specialisation s = helper_kernel(products, entry, workgroup);
  s.target = products.target;
  s.exact_dims = products.exact_dims;
  s.band = products.band;
  s.precision = products.precision;
  s.lds_bytes = lds_bytes;
  s.sinks = 0;
  return {s, workgroups};
}

LaunchPlan int8_plan(const Problem& p, const Specialisation& s) {
  constexpr int kLanes = 256;
  LaunchPlan plan = query_tile_plan(p, s);
  const kernels::Int8Workspace w = code_workspace_of(p, s);
  plan.code_floats = w.total / static_cast<int64_t>(sizeof(float));
  const bool empty = plan.launches.front().workgroups == 0;
  const int64_t kv_heads = p.batch * p.num_kv_heads,
                keys = kv_heads * tiles_of(p.seqlen_k, kernels::kCodedRows),
                queries = p.batch * p.num_heads * tiles_of(p.seqlen_q, kernels::kCodedRows);
  plan.launches.insert(
      plan.launches.begin(),
      {int8_launch(s, "forward/int8_key_sums.h", kLanes, kernels::key_sum_bytes(kLanes),
                   empty ? 0 : kv_heads * w.parts),
       int8_launch(s, "forward/int8_codes.h", kLanes, kernels::CodeLayout::of(s.head_dim).total,
                   empty ? 0 : keys + queries)});
  return plan;
}

class PrefillInt8 final : public Family {
 public:
  explicit PrefillInt8(const Target& target) : Family(target), tiles_(*target.prefill_int8) {}
  std::string_view name() const noexcept override { return "prefill_int8"; }
  bool has_products(Precision precision) const noexcept override {
    return precision == Precision::int8;
  }
  HeadDims most_head_dims() const noexcept override {
    const int64_t most = tiles_.shapes.back().max_head_dim;
    return {most, most};
  }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (has_masks(p) || has_score_mod(p))
      return Support::no(
          "its products in int8 take causal masks, windows, a bias, ALiBi slopes, a softcap and "
          "sinks, no masks in memory or score functions");
    const Specialisation s = specialisation(p, chip);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    const LaunchPlan launches = int8_plan(p, s);
    int64_t most = 0;
    for (const KernelLaunch& launch : launches.launches) most = std::max(most, launch.workgroups);
    return grid_fits(most);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    return int8_plan(p, specialisation(p, chip));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    return prefill_space(specialisation(p, chip), chip, [this, p, chip](const PrefillShape& shape) {
      return takes(p, chip, shape);
    });
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> values) const override {
    return int8_plan(p, specialisation(p, prefill_shape_of(values, chip), chip));
  }

 private:
  // What static_asserts of the kernel demand, LDS and registers.
  Support takes(const Problem& p, const Chip& chip, const PrefillShape& shape) const {
    if (Support support = takes_wave_rows(shape); !support.yes) return support;
    if (Support support = keys_fill_products(shape.block_n, target()); !support.yes) return support;
    if (Support support = takes_copied_rows(shape, chip); !support.yes) return support;
    const Specialisation s = specialisation(p, shape, chip);
    if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
      return support;
    const int queries = shape.queries_in_lds ? 0 : s.head_dim / 4;
    return registers_fit(int64_t{shape.block_m / shape.waves} *
                             (s.head_dim_v + s.block_n + queries) / chip.wave_size,
                         chip, shape.waves, shape.min_waves, shape.min_workgroups);
  }
  Specialisation specialisation(const Problem& p, const Chip& chip) const {
    for (const PrefillShape& shape : tiles_.shapes) {
      if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
      const Specialisation s = specialisation(p, shape, chip);
      if (s.min_workgroups * s.lds_bytes <= chip.lds_bytes) return s;
    }
    return specialisation(p, tiles_.shapes.back(), chip);
  }
  Specialisation specialisation(const Problem& p, const PrefillShape& shape,
                                const Chip& chip) const {
    constexpr int kCodeBytes = 1;
    Specialisation s;
    s.entry = "forward/prefill_int8.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, tiles_.value_dims));
    set_shape(shape, chip, s);
    s.precision = static_cast<int>(Precision::int8);
    specialise_for(p, s);
    set_prefill_lds(s, kCodeBytes);
    return s;
  }
  const PrefillTiles& tiles_;
};

}  // namespace

const Family* make_prefill_int8(const Target& target) {
  return target.prefill_int8 ? new PrefillInt8(target) : nullptr;
}

}  // namespace fulmen::gpu
