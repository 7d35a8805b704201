#include "gpu/launch/prefill_codes.h"

#include <algorithm>

namespace fulmen::gpu {

KernelLaunch PrefillCodes::code_launch(const Specialisation& products, std::string_view entry,
                                       int workgroup, int lds_bytes, int64_t workgroups) {
  Specialisation s = helper_kernel(products, entry, workgroup);
  s.target = products.target;
  s.exact_dims = products.exact_dims;
  s.band = products.band;
  s.precision = products.precision;
  s.lds_bytes = lds_bytes;
  s.sinks = 0;
  return {s, workgroups};
}

HeadDims PrefillCodes::most_head_dims() const noexcept {
  const int64_t most = tiles_.shapes.back().max_head_dim;
  return {most, most};
}

Support PrefillCodes::supports(const Problem& p, const Chip& chip) const {
  if (Support support = takes_matrix_instructions(p); !support.yes) return support;
  if (precision_ == Precision::fp8 && !chip.multiplies_e4m3)
    return Support::no(std::string(chip.arch) +
                       " has no instruction of a wave that multiplies E4M3: sm_89 and sm_120 have");
  if (has_masks(p) || has_score_mod(p))
    return Support::no(std::string("its products in ") +
                       (precision_ == Precision::int8 ? "int8" : "fp8") +
                       " take causal masks, windows, a bias, ALiBi slopes, a softcap and sinks, no "
                       "masks in memory or score functions");
  const Specialisation s = specialisation(p, chip);
  if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
  const LaunchPlan launches = with_codes(p, s);
  int64_t most = 0;
  for (const KernelLaunch& launch : launches.launches) most = std::max(most, launch.workgroups);
  return grid_fits(most);
}

LaunchPlan PrefillCodes::plan(const Problem& p, const Chip& chip, int /*compute_units*/) const {
  return with_codes(p, specialisation(p, chip));
}

tuning::Space PrefillCodes::space(const Problem& p, const Chip& chip, int /*compute_units*/) const {
  return prefill_space(specialisation(p, chip), chip, [this, p, chip](const PrefillShape& shape) {
    return takes(p, chip, shape);
  });
}

LaunchPlan PrefillCodes::tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                                    std::span<const int> values) const {
  return with_codes(p, specialisation(p, prefill_shape_of(values, chip), chip));
}

// What static_asserts of the kernel demand, LDS and registers.
Support PrefillCodes::takes(const Problem& p, const Chip& chip, const PrefillShape& shape) const {
  if (Support support = takes_wave_rows(shape); !support.yes) return support;
  if (Support support = keys_fill_products(shape.block_n, target()); !support.yes) return support;
  constexpr int kPanelKeys = 32;  // fp8: panels are whole ones, of any chip
  if (precision_ == Precision::fp8 && shape.block_n % kPanelKeys != 0)
    return Support::no("tiles of " + std::to_string(shape.block_n) + " keys: panels have 32");
  if (Support support = takes_copied_rows(shape, chip); !support.yes) return support;
  const Specialisation s = specialisation(p, shape, chip);
  if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
    return support;
  const int queries = shape.queries_in_lds ? 0 : s.head_dim / 4;
  return registers_fit(
      int64_t{shape.block_m / shape.waves} * (s.head_dim_v + s.block_n + queries) / chip.wave_size,
      chip, shape.waves, shape.min_waves, shape.min_workgroups);
}

Specialisation PrefillCodes::specialisation(const Problem& p, const Chip& chip) const {
  for (const PrefillShape& shape : tiles_.shapes) {
    if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
    const Specialisation s = specialisation(p, shape, chip);
    if (s.min_workgroups * s.lds_bytes <= chip.lds_bytes) return s;
  }
  return specialisation(p, tiles_.shapes.back(), chip);
}

Specialisation PrefillCodes::specialisation(const Problem& p, const PrefillShape& shape,
                                            const Chip& chip) const {
  constexpr int kCodeBytes = 1;
  Specialisation s;
  s.entry = entry_;
  s.target = &target();
  s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, tiles_.value_dims));
  set_shape(shape, chip, s);
  s.precision = static_cast<int>(precision_);
  specialise_for(p, s);
  set_prefill_lds(s, kCodeBytes, precision_ == Precision::fp8);
  return s;
}

}  // namespace fulmen::gpu
