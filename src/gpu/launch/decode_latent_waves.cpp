// kernels/forward/decode_latent_waves.h: few queries of latent attention, whose values are the
// first dims of its keys (Problem::values_in_keys), by a wave's matrix instructions.
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/launch/decode.h"
#include "kernels/forward/decode_latent_waves_layout.h"

namespace fulmen::gpu {
namespace {

class DecodeLatentWaves final : public Family {
 public:
  explicit DecodeLatentWaves(const Target& target)
      : Family(target), tiles_(*target.decode_latent) {}
  std::string_view name() const noexcept override { return "decode_latent"; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = takes_values_in_keys(p); !support.yes) return support;
    if (has_masks(p))
      return Support::no("values that a keep_mask leaves out may be NaN, and are multiplied");
    if (p.seqlen_q > kMostQueries) {
      return Support::no("seqlen_q is " + std::to_string(p.seqlen_q) + ", up to " +
                         std::to_string(kMostQueries) + " are served");
    }
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = lds_fits(specialisation(p, 1).lds_bytes, chip); !support.yes)
      return support;
    if (Support support = decode_serves(p, target(), chip); !support.yes) return support;
    return grid_fits(groups(p) * most_splits(p, kMinSplitKeys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, usual_splits(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    return splits_space(chip, usual_splits(p, compute_units), most_splits(p, kMinSplitKeys));
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, chip, v[0]);
  }

 private:
  static constexpr int64_t kMostQueries = 8;  // more fill tiles of one head's queries
  static constexpr int64_t kMinSplitKeys = 256;
  static constexpr int64_t kWaveRows = 16;

  const LatentShape& shape(const Problem& p) const {
    const auto all_rows =
        std::find_if(tiles_.shapes.begin(), tiles_.shapes.end(),
                     [&](const LatentShape& s) { return packed_rows(p) <= kWaveRows * s.waves; });
    return all_rows == tiles_.shapes.end() ? tiles_.shapes.back() : *all_rows;
  }
  int64_t row_tiles(const Problem& p) const {
    return tiles_of(packed_rows(p), kWaveRows * shape(p).waves);
  }
  int64_t groups(const Problem& p) const { return p.batch * p.num_kv_heads * row_tiles(p); }
  // A workgroup takes a whole compute unit.
  int usual_splits(const Problem& p, int compute_units) const {
    return choose_splits(p, groups(p), kMinSplitKeys, std::max(1, compute_units));
  }

  Specialisation specialisation(const Problem& p, int num_splits) const {
    Specialisation s;
    s.entry = "forward/decode_latent_waves.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    const LatentShape& rows = shape(p);
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, int64_t{32} * rows.waves));
    s.block_m = static_cast<int>(kWaveRows) * rows.waves;
    s.block_n = tiles_.block_n;
    s.workgroup = rows.waves * target().chips.front().wave_size;
    s.min_waves = rows.min_waves;
    s.dim_groups = rows.waves;
    s.packed_rows = 1;
    s.splits = num_splits > 1 ? 1 : 0;
    using Layout = kernels::LatentWavesLayout;
    const int steps = s.head_dim / target().mma_k;
    s.lds_bytes = Layout::of(s.head_dim, s.block_m, s.block_n, target().row_padding()).total +
                  std::min(rows.lds_queries, steps - 1) * Layout::query_bytes(s.block_m);
    specialise_for(p, s);
    return s;
  }
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const {
    LaunchPlan plan = split_plan(p, chip, specialisation(p, num_splits), row_tiles(p), num_splits,
                                 tiles_.block_n);
    if (plan.launches.empty()) return plan;
    plan.unaligned = std::make_shared<LaunchPlan>(decode_plan(p, target(), chip, num_splits));
    plan.values_in_keys = true;
    return plan;
  }

  const DecodeLatentTiles& tiles_;
};

}  // namespace

const Family* make_decode_latent_waves(const Target& target) {
  return new DecodeLatentWaves(target);
}

}  // namespace fulmen::gpu
