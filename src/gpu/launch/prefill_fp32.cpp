// kernels/forward/prefill_fp32.h: fp32 of any lengths, by matrix instructions.
#include <algorithm>
#include <span>
#include <string>

#include "gpu/launch/fp32.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/prefill_space.h"
#include "kernels/tile/fp32/layout.h"

namespace fulmen::gpu {
namespace {

class PrefillFp32 final : public Family {
 public:
  explicit PrefillFp32(const Target& target) : Family(target), tiles_(*target.prefill_fp32) {}
  std::string_view name() const noexcept override { return "prefill_fp32"; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = takes_fp32(p, target(), tiles_.shapes.back().max_head_dim); !support.yes)
      return support;
    const Specialisation s = specialisation(p, chip);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(query_tile_workgroups(p, s));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    return plan_of(p, specialisation(p, chip));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const Specialisation usual = specialisation(p, chip);
    const bool amd = chip.vendor == Vendor::amd;
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"block_m", usual.block_m, {32, 64, 128, 256}},
                        {"block_n", usual.block_n, {16, 32, 64}},
                        {"waves", usual.workgroup / chip.wave_size, {2, 4, 8}},
                        {"buffers", usual.buffers, {1, 2}},
                        {"queries_in_lds", usual.queries_in_lds, {0, 1}},
                        {amd ? "min_waves" : "min_workgroups",
                         amd ? usual.min_waves : usual.min_workgroups,
                         {1, 2, 3}}};
    tuning::include_usual(space);
    space.takes = [this, p, chip, values = space.usual()](std::span<const int> v) -> Support {
      return std::equal(v.begin(), v.end(), values.begin())
                 ? Support{}
                 : takes(p, chip, prefill_shape_of(v, chip));
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> values) const override {
    return plan_of(p, specialisation(p, chip, prefill_shape_of(values, chip)));
  }

 private:
  // What static_asserts of the kernel demand, LDS and registers.
  Support takes(const Problem& p, const Chip& chip, const PrefillShape& shape) const {
    const int rows = shape.block_m / shape.waves;
    if (Support support = takes_wave_rows(shape); !support.yes) return support;
    if (Support support = keys_fill_products(shape.block_n, target()); !support.yes) return support;
    if (chip.vendor == Vendor::nvidia && !shape.queries_in_lds)
      return Support::no("queries are read from LDS");
    if (Support support = takes_copied_rows(shape, chip); !support.yes) return support;
    const Specialisation s = specialisation(p, chip, shape);
    if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
      return support;
    // Scores have two sums; queries three parts of 16 bits.
    const int queries = shape.queries_in_lds ? 0 : s.head_dim * 3 / 2 * target().operand_copies;
    return registers_fit(int64_t{rows} * (s.head_dim_v + 2 * s.block_n + queries) / chip.wave_size,
                         chip, shape.waves, shape.min_waves, shape.min_workgroups);
  }
  static LaunchPlan plan_of(const Problem& p, const Specialisation& s) {
    LaunchPlan plan = query_tile_plan(p, s);
    add_mask_bits(p, plan);
    return plan;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip) const {
    for (const PrefillShape& shape : tiles_.shapes) {
      const Specialisation s = specialisation(p, chip, shape);
      if (s.min_workgroups * s.lds_bytes <= chip.lds_bytes &&
          std::max(s.head_dim, s.head_dim_v) <= shape.max_head_dim) {
        return s;
      }
    }
    return specialisation(p, chip, tiles_.shapes.back());
  }
  Specialisation specialisation(const Problem& p, const Chip& chip,
                                const PrefillShape& shape) const {
    Specialisation s;
    s.entry = "forward/prefill_fp32.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, tiles_.value_dims));
    set_shape(shape, chip, s);
    s.lds_bytes = kernels::PrefillFp32Layout::of({.planes_depth = target().transposed_depth(),
                                                  .head_dim = s.head_dim,
                                                  .head_dim_v = s.head_dim_v,
                                                  .block_m = s.block_m,
                                                  .block_n = s.block_n,
                                                  .buffers = s.buffers,
                                                  .queries_in_lds = s.queries_in_lds != 0})
                      .total;
    specialise_fp32_for(p, s);
    read_mask_as_bits(p, s);
    s.early_loads = loads_early(s, chip);
    return s;
  }
  // AMD: whether registers of outputs, queries and scores leave room for a tile in flight. Rows
  // that are not whole take some for their addresses.
  bool loads_early(const Specialisation& s, const Chip& chip) const {
    constexpr int kMost = 128;
    const int queries = s.queries_in_lds != 0 ? 0 : s.head_dim * 3 / 2 * target().operand_copies;
    const int rows = s.block_m * chip.wave_size / s.workgroup;
    const int held = rows * (s.head_dim_v + s.block_n + queries) / chip.wave_size;
    const int in_flight = s.block_n * (s.head_dim + s.head_dim_v) / s.workgroup;
    return chip.wave_size == 64 || (s.whole_rows != 0 && held + in_flight <= kMost);
  }
  const PrefillFp32Tiles& tiles_;
};

}  // namespace

const Family* make_prefill_fp32(const Target& target) {
  return target.prefill_fp32 ? new PrefillFp32(target) : nullptr;
}

}  // namespace fulmen::gpu
