// kernels/forward/short.h: up to 128 keys, the whole score row in registers.
#include <algorithm>

#include "gpu/launch/family.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kMostKeys = 128;
constexpr int kMostWaves = 4;
constexpr int64_t kMostOddKeys = 64, kMostOddDim = 64;  // gfx11, of head dims that are no multiples of 8

class ShortSequence final : public Family {
 public:
  explicit ShortSequence(const MatrixTarget& target) : target_(target) {}
  std::string_view name() const noexcept override { return "short"; }
  std::string_view target() const noexcept override { return target_.name; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.seqlen_k > kMostKeys) return Support::no("seqlen_k is " + std::to_string(p.seqlen_k) + ", at most 128 are served");
    const int64_t most_dim = most_head_dim(chip);
    if (std::max(p.head_dim, p.head_dim_v) > most_dim) {
      return Support::no("head_dim is " + std::to_string(std::max(p.head_dim, p.head_dim_v)) + ", registers hold rows of up to " +
                         std::to_string(most_dim));
    }
    if (chip.target == "gfx11" && odd_dims(p) && (block_n(p) > kMostOddKeys || std::max(p.head_dim, p.head_dim_v) > kMostOddDim)) {
      return Support::no("head dims that are no multiples of 8 are served up to " + std::to_string(kMostOddDim) + " with up to " +
                         std::to_string(kMostOddKeys) + " keys: loads of single elements would spill registers");
    }
    if (p.paged() && !tiles_in_pages(p, block_n(p))) {
      // Looking up each row takes the registers that whole rows of scores need.
      return Support::no("pages of " + std::to_string(p.page_size) + " rows" + (p.leftpad_k.present ? " and leftpad_k" : "") +
                         ": all keys are needed in one page, whose rows are a multiple of " + std::to_string(block_n(p)));
    }
    return grid_fits(workgroups(p));
  }
  double rank(const Problem& p) const override { return target_.name == "sm80" && tiles_pay(p) ? 18 : 30; }
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
    // gfx11: V before it is needed takes registers that are not there; and the bound on workgroups is NVIDIA's.
    if (chip.target == "gfx11") space.parameters[1].values = {usual.early_loads};
    if (chip.vendor == Vendor::amd) space.parameters[2].values = {usual.min_workgroups};
    space.takes = [p, chip, usual](std::span<const int> v) -> Support {
      if (v[0] > waves(p)) return Support::no("the queries are " + std::to_string(p.seqlen_q) + ", of which a wave has 16");
      const bool same = v[1] == static_cast<int>(usual.early_loads) && v[2] == usual.min_workgroups && v[0] == waves(p);
      const int64_t values = v[1] != 0 ? usual.block_n * usual.head_dim_v / 2 : 0;
      const int64_t each = int64_t{16} * (usual.block_n + usual.head_dim_v) + values;
      return same ? Support{} : registers_fit(each / chip.wave_size, chip, v[0], 1, v[2]);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units, std::span<const int> v) const override {
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
    s.target = target_.name;
    s.head_dim = static_cast<int>(round_up(p.head_dim, target_.depth));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, 32));
    s.block_m = 16 * waves(p);
    s.block_n = block_n(p);
    s.workgroup = waves(p) * chip.wave_size;
    specialise_for(p, s);
    choose_occupancy(p, chip, compute_units, s);
    return s;
  }
  static LaunchPlan plan_of(const Problem& p, const Specialisation& s) { return query_tile_plan(p, s); }
  // Whole rows of scores take registers: where keys times dims are many, and workgroups enough to fill the chip, the forward
  // kernels' larger tiles are faster on an H200 (docs/lab/nvidia_forward.md). Not for few rows of queries, which leave these half
  // empty.
  static bool tiles_pay(const Problem& p) {
    constexpr int64_t kFewQueries = 64, kFewKeysTimesDims = 96 * 32, kFewWorkgroups = 128;
    return p.seqlen_q > kFewQueries && block_n(p) * std::max(p.head_dim, p.head_dim_v) > kFewKeysTimesDims &&
           workgroups(p) > kFewWorkgroups;
  }
  static bool odd_dims(const Problem& p) { return p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0; }
  // Scores, outputs and a step's operands are in registers at once.
  static int64_t most_head_dim(const Chip& chip) { return chip.target == "gfx11" ? 128 : 256; }
  // Measured on the H200 (docs/lab/nvidia_forward.md). Few workgroups: each shall end soon, so V is fetched at once. Many: with
  // more of them on a multiprocessor there are more loads in flight; a bias takes the registers that an early V would need.
  static void choose_occupancy(const Problem& p, const Chip& chip, int compute_units, Specialisation& s) {
    const bool few = workgroups(p) <= int64_t{4} * compute_units;
    const int dim = std::max(s.head_dim, s.head_dim_v);
    const bool small = s.block_n <= 64;  // V's rows have registers beside those of scores
    s.early_loads = small && dim <= 64 && (few || !p.bias.present);
    // gfx11: a lane has all keys of its dims, and these would leave too few registers for the rest.
    if (chip.target == "gfx11")
      s.early_loads = s.early_loads && s.block_n * s.head_dim_v <= 64 * 32 && !s.keep_mask && s.whole_dims;
    if (few || dim > 64 || !small) return;
    s.min_workgroups = dim > 32 ? 4 : p.bias.present ? 5 : 1;
  }
  // Rounded up to 32 keys: fewer kernels for lengths that vary.
  static int block_n(const Problem& p) { return static_cast<int>(std::max<int64_t>(32, round_up(p.seqlen_k, 32))); }
  static int waves(const Problem& p) { return static_cast<int>(std::clamp<int64_t>((p.seqlen_q + 15) / 16, 1, kMostWaves)); }
  static int64_t row_tiles(const Problem& p) { return (p.seqlen_q + 16 * waves(p) - 1) / (16 * waves(p)); }
  static int64_t workgroups(const Problem& p) { return row_tiles(p) * p.batch * p.num_heads; }
  const MatrixTarget& target_;
};

}  // namespace

std::vector<const Family*> short_families() {
  std::vector<const Family*> list;
  for (const MatrixTarget& target : kMatrixTargets) list.push_back(new ShortSequence(target));
  return list;
}

}  // namespace fulmen::gpu
