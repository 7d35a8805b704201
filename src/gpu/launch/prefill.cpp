// kernels/forward/prefill.h: any lengths.
#include <algorithm>
#include <span>
#include <vector>

#include "gpu/launch/board_shapes.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/prefill_space.h"
#include "gpu/launch/quantized.h"
#include "kernels/forward/prefill_layout.h"

namespace fulmen::gpu {
namespace {

class Forward final : public Family {
 public:
  explicit Forward(const Target& target) : Family(target), tiles_(*target.prefill) {}
  std::string_view name() const noexcept override { return "prefill"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override {
    const int64_t most = tiles_.shapes.back().max_head_dim;
    return {most, std::min(most, kMaxHeadDimV)};
  }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = multiplies_stored(p, target()); !support.yes) return support;
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const Specialisation s = specialisation(p, chip, 0);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(query_tile_workgroups(p, s));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, specialisation(p, chip, compute_units), compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation usual = specialisation(p, chip, compute_units);
    return prefill_space(
        usual, chip, [this, p, chip](const PrefillShape& shape) { return takes(p, chip, shape); });
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> values) const override {
    return plan_of(p, specialisation(p, chip, prefill_shape_of(values, chip), false),
                   compute_units);
  }

 private:
  std::span<const PrefillShape> shapes_for(const Problem& p) const {
    return p.quantized_kv() && !tiles_.quantized_shapes.empty() ? tiles_.quantized_shapes
                                                                : tiles_.shapes;
  }
  int value_parts(const Problem& p) const {
    return std::max(p.head_dim, p.head_dim_v) > tiles_.wave_dims ? 2 : 1;
  }
  int head_dim_v(const Problem& p) const {
    constexpr int kSwizzledDims = 64;  // NVIDIA: of a row of LDS
    const int parts = value_parts(p), dims = parts > 1 && target().vendor == Vendor::nvidia
                                                 ? kSwizzledDims
                                                 : tiles_.value_dims;
    return static_cast<int>(round_up(p.head_dim_v, int64_t{parts} * dims));
  }
  // What static_asserts of the kernel demand, LDS and registers.
  Support takes(const Problem& p, const Chip& chip, const PrefillShape& shape) const {
    const int parts = value_parts(p), rows = shape.block_m * parts / shape.waves;
    if (Support support = takes_wave_rows(shape, parts); !support.yes) return support;
    if (Support support = keys_fill_products(shape.block_n, target()); !support.yes) return support;
    if (Support support = takes_copied_rows(shape, chip); !support.yes) return support;
    const Specialisation s = specialisation(p, chip, shape, false);
    if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
      return support;
    const int queries = shape.queries_in_lds ? 0 : s.head_dim / 2;
    // NVIDIA: else asynchronous copies take none.
    const int64_t in_flight =
        p.quantized_kv() && chip.vendor == Vendor::nvidia
            ? int64_t{s.block_n} * (s.head_dim + s.head_dim_v) / (4 * s.workgroup)
            : 0;
    return registers_fit(
        int64_t{rows} * (s.head_dim_v / parts + s.block_n + queries) / chip.wave_size + in_flight,
        chip, shape.waves, shape.min_waves, shape.min_workgroups);
  }
  static LaunchPlan plan_of(const Problem& p, const Specialisation& asked, int compute_units) {
    LaunchPlan plan = query_tile_plan(p, asked);
    KernelLaunch& launch = plan.launches.front();
    if (const Specialisation& s = launch.specialisation; s.persistent) {
      launch.workgroups =
          std::min(launch.workgroups, int64_t{std::max(1, compute_units)} * s.min_workgroups);
      split_step(launch.workgroups, s.band, plan.arguments);
    }
    add_mask_bits(p, plan);
    return plan;
  }
  // The static scheduler's stride to a workgroup's next tile, as a mixed-radix index in the order
  // of QueryBlock: with a band (head, batch, tile), the fastest first, else (tile, head, batch).
  static void split_step(int64_t workgroups, bool band, kernels::ForwardArguments& a) {
    if (workgroups == 0) return;
    const int64_t tiles = band ? workgroups / a.num_heads / a.batch : workgroups % a.row_tiles;
    const int64_t heads = band ? workgroups : workgroups / a.row_tiles;
    a.step_tile = static_cast<int>(tiles);
    a.step_head = static_cast<int>(heads % a.num_heads);
    a.step_batch = static_cast<int>(band ? heads / a.num_heads % a.batch : heads / a.num_heads);
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, int compute_units) const {
    const Specialisation usual = usual_specialisation(p, chip);
    if (p.quantized_kv() || prefers_board_shapes(target(), p)) return usual;
    const int64_t tiles = query_tile_workgroups(p, usual);
    std::span<const PrefillShape> few;
    if (has_wide_heads(p) && 2 * tiles <= compute_units) few = tiles_.few_wide_shapes;
    if (!has_wide_heads(p) && 2 * tiles <= 3 * int64_t{compute_units})
      few = tiles_.few_narrow_shapes;
    for (const PrefillShape& shape : few) {
      if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
      const Specialisation s = specialisation(p, chip, shape, false);
      if (s.lds_bytes <= chip.lds_bytes) return s;
    }
    if (compute_units > 0 && tiles >= 2 * int64_t{compute_units}) {
      if (const PrefillShape* shape = many_plain_shape(p)) {
        const Specialisation s = specialisation(p, chip, *shape, false);
        if (is_plain(p, s) && takes_plain_tile(s, *shape)) return s;
      }
    }
    return usual;
  }
  const PrefillShape* many_plain_shape(const Problem& p) const {
    for (const PrefillShape& shape : tiles_.many_plain_shapes) {
      if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
      const int64_t rows = round_up(p.seqlen_q, int64_t{shape.block_m});
      return 8 * (rows - p.seqlen_q) <= p.seqlen_q ? &shape : nullptr;
    }
    return nullptr;
  }
  Specialisation usual_specialisation(const Problem& p, const Chip& chip) const {
    const bool board = prefers_board_shapes(target(), p) && !p.quantized_kv();
    const std::span<const PrefillShape> shapes = shapes_for(p);
    for (const PrefillShape& shape : board ? tiles_.board_shapes : shapes) {
      for (const bool is_persistent : {true, false}) {
        if (is_persistent && !persistent(p, shape)) continue;
        const Specialisation s = specialisation(p, chip, shape, is_persistent);
        const bool fits = (board ? 1 : s.min_workgroups) * s.lds_bytes <= chip.lds_bytes;
        if (fits && std::max(s.head_dim, s.head_dim_v) <= shape.max_head_dim) return s;
      }
    }
    return specialisation(p, chip, shapes.back(), false);
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, const PrefillShape& shape,
                                bool persistent) const {
    Specialisation s;
    s.entry = "forward/prefill.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.dim_groups = value_parts(p);
    s.head_dim_v = head_dim_v(p);
    set_shape(shape, chip, s);
    s.persistent = persistent;
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    if (shape.plain_waves > 0 && is_plain(p, s)) s.min_waves = shape.plain_waves;
    if (is_plain(p, s) && takes_plain_tile(s, shape)) s.score_tile = tiles_.plain_tile;
    set_prefill_lds(s);
    return s;
  }
  bool takes_plain_tile(const Specialisation& s, const PrefillShape& shape) const {
    const int wave_rows = s.block_m * s.dim_groups / shape.waves;
    return s.block_n >= tiles_.plain_keys && wave_rows % tiles_.plain_tile == 0 &&
           s.block_n % tiles_.plain_tile == 0 &&
           s.head_dim_v % (tiles_.plain_tile * s.dim_groups) == 0;
  }
  // Nothing takes registers beside the products and the softmax.
  static bool is_plain(const Problem& p, const Specialisation& s) {
    return s.whole_rows && !p.bias.present && !p.alibi_slopes.present && !has_masks(p) &&
           !has_score_mod(p) && p.softcap == 0 && p.dropout == 0 && !p.quantized_kv() &&
           s.page_size == 0;
  }
  // One workgroup a multiprocessor: nothing hides its start and end, which are long beside few
  // tiles of keys. With a band, workgroups do not get as many keys each: later ones would not take
  // what the first have yet to do.
  static bool persistent(const Problem& p, const PrefillShape& shape) {
    return shape.persistent && p.seqlen_k <= (has_band(p) ? 1024 : 2048) && !p.variable_lengths() &&
           !has_masks(p) && p.dropout == 0 && !p.quantized_kv();
  }
  const PrefillTiles& tiles_;
};

}  // namespace

LaunchPlan prefill_plan(const Problem& problem, const Target& target, const Chip& chip,
                        int compute_units) {
  return Forward(target).plan(problem, chip, compute_units);
}

const Family* make_prefill(const Target& target) {
  return target.prefill ? new Forward(target) : nullptr;
}

}  // namespace fulmen::gpu
