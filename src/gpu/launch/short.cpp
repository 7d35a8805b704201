// kernels/forward/short.h: up to 128 keys, the whole score row in registers.
#include <algorithm>

#include "gpu/launch/family.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kShortMostKeys = 128;
constexpr int kMostWaves = 4;

class ShortSequence final : public Family {
 public:
  explicit ShortSequence(const Target& target) : Family(target), tiles_(*target.short_sequences) {}
  std::string_view name() const noexcept override { return "short"; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.seqlen_k > kShortMostKeys)
      return Support::no("seqlen_k is " + std::to_string(p.seqlen_k) + ", at most 128 are served");
    if (std::max(p.head_dim, p.head_dim_v) > tiles_.max_head_dim) {
      return Support::no("head_dim is " + std::to_string(std::max(p.head_dim, p.head_dim_v)) +
                         ", registers hold rows of up to " + std::to_string(tiles_.max_head_dim));
    }
    if (odd_dims(p) && (block_n(p) > tiles_.most_odd_keys ||
                        std::max(p.head_dim, p.head_dim_v) > tiles_.most_odd_dim)) {
      return Support::no("head dims that are no multiples of 8 are served up to " +
                         std::to_string(tiles_.most_odd_dim) + " with up to " +
                         std::to_string(tiles_.most_odd_keys) +
                         " keys: loads of single elements would spill registers");
    }
    if (p.paged() && !tiles_in_pages(p, block_n(p))) {
      // Looking up each row takes the registers that whole rows of scores need.
      return Support::no("pages of " + std::to_string(p.page_size) + " rows" +
                         (p.leftpad_k.present ? " and leftpad_k" : "") +
                         ": all keys are needed in one page, whose rows are a multiple of " +
                         std::to_string(block_n(p)));
    }
    return grid_fits(workgroups(p));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, usual_kernel(p, chip, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation usual = usual_kernel(p, chip, compute_units);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"waves", waves(p), {1, 2, 4}},
                        {"early_loads", static_cast<int>(usual.early_loads), {0, 1}},
                        {"min_workgroups", usual.min_workgroups, {1, 2, 3, 4, 5, 6}}};
    // The bound on workgroups is NVIDIA's.
    if (!tiles_.early_is_tuned) space.parameters[1].values = {usual.early_loads};
    if (chip.vendor == Vendor::amd) space.parameters[2].values = {usual.min_workgroups};
    space.takes = [p, chip, usual](std::span<const int> v) -> Support {
      if (v[0] > waves(p))
        return Support::no("the queries are " + std::to_string(p.seqlen_q) +
                           ", of which a wave has 16");
      const bool same = v[1] == static_cast<int>(usual.early_loads) &&
                        v[2] == usual.min_workgroups && v[0] == waves(p);
      const int64_t values = v[1] != 0 ? usual.block_n * usual.head_dim_v / 2 : 0;
      const int64_t each = int64_t{16} * (usual.block_n + usual.head_dim_v) + values;
      return same ? Support{} : registers_fit(each / chip.wave_size, chip, v[0], 1, v[2]);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    Specialisation s = usual_kernel(p, chip, compute_units);
    s.block_m = 16 * v[0];
    s.workgroup = v[0] * chip.wave_size;
    s.early_loads = v[1] != 0;
    s.min_workgroups = v[2];
    return plan_of(p, s);
  }

 private:
  Specialisation usual_kernel(const Problem& p, const Chip& chip, int compute_units) const {
    Specialisation s;
    s.entry = "forward/short.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, 32));
    s.block_m = 16 * waves(p);
    s.block_n = block_n(p);
    s.workgroup = waves(p) * chip.wave_size;
    specialise_for(p, s);
    choose_occupancy(p, compute_units, s);
    return s;
  }
  static LaunchPlan plan_of(const Problem& p, const Specialisation& s) {
    return query_tile_plan(p, s);
  }
  static bool odd_dims(const Problem& p) { return p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0; }
  // Measured on the H200 (docs/lab/nvidia_forward.md). Few workgroups: each shall end soon, so V is
  // fetched at once. Many: with more of them on a multiprocessor there are more loads in flight; a
  // bias takes the registers that an early V would need.
  void choose_occupancy(const Problem& p, int compute_units, Specialisation& s) const {
    const bool few = workgroups(p) <= int64_t{4} * compute_units;
    const int dim = std::max(s.head_dim, s.head_dim_v);
    const bool small = s.block_n <= 64;  // V's rows have registers beside those of scores
    const bool fits = s.block_n * s.head_dim_v <= tiles_.early_values &&
                      (tiles_.early_beside_mask || !s.keep_mask) &&
                      (tiles_.early_odd_dims || s.whole_dims);
    s.early_loads = small && fits && dim <= 64 && (few || !p.bias.present);
    if (few || dim > 64 || !small) return;
    s.min_workgroups = dim > 32 ? 4 : p.bias.present ? 5 : 1;
  }
  // Rounded up to 32 keys: fewer kernels for lengths that vary.
  static int block_n(const Problem& p) {
    return static_cast<int>(std::max<int64_t>(32, round_up(p.seqlen_k, 32)));
  }
  static int waves(const Problem& p) {
    return static_cast<int>(std::clamp<int64_t>((p.seqlen_q + 15) / 16, 1, kMostWaves));
  }
  static int64_t row_tiles(const Problem& p) {
    return (p.seqlen_q + 16 * waves(p) - 1) / (16 * waves(p));
  }
  static int64_t workgroups(const Problem& p) { return row_tiles(p) * p.batch * p.num_heads; }
  const ShortTiles& tiles_;
};

}  // namespace

const Family* make_short(const Target& target) {
  return target.short_sequences ? new ShortSequence(target) : nullptr;
}

}  // namespace fulmen::gpu
