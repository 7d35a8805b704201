// kernels/forward/decode_latent_waves.h: few queries of latent attention, whose values are the
// first dims of its keys (Problem::values_in_keys), by a wave's matrix instructions.
#include <algorithm>
#include <memory>

#include "gpu/launch/decode_latent.h"
#include "kernels/forward/decode_latent_waves_layout.h"

namespace fulmen::gpu {
namespace {

class DecodeLatentWaves final : public LatentDecode {
 public:
  explicit DecodeLatentWaves(const Target& target)
      : LatentDecode(target, target), tiles_(*target.decode_latent) {}

 private:
  static constexpr int64_t kWaveRows = 16;

  Support takes_keys(const Problem& p) const override {
    if (Support support = takes_few_queries(p); !support.yes) return support;
    return takes_functions(p, kMostTileOperations);
  }
  int64_t block_rows(const Problem& p) const override { return kWaveRows * shape(p).waves; }
  const LatentShape& shape(const Problem& p) const {
    const auto all_rows =
        std::find_if(tiles_.shapes.begin(), tiles_.shapes.end(),
                     [&](const LatentShape& s) { return packed_rows(p) <= kWaveRows * s.waves; });
    return all_rows == tiles_.shapes.end() ? tiles_.shapes.back() : *all_rows;
  }
  // A workgroup takes a whole compute unit.
  int usual_splits(const Problem& p, int compute_units) const override {
    const int64_t units = std::max(1, compute_units);
    return static_cast<int>(
        std::min<int64_t>(most(p), choose_splits(p, groups(p), kMinSplitKeys, units)));
  }

  Specialisation specialisation(const Problem& p, int num_splits) const override {
    Specialisation s;
    s.entry = "forward/decode_latent_waves.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    const LatentShape& rows = shape(p);
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, int64_t{32} * rows.waves));
    s.block_m = static_cast<int>(block_rows(p));
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
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const override {
    LaunchPlan plan = split_plan(p, chip, specialisation(p, num_splits), row_tiles(p), num_splits,
                                 tiles_.block_n);
    if (plan.launches.empty()) return plan;
    plan.unaligned = std::make_shared<LaunchPlan>(decode_plan(p, usual(), chip, num_splits));
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
