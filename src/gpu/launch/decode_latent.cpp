// kernels/forward/decode_latent.h: few queries of latent attention, whose values are the first dims
// of its keys (Problem::values_in_keys), by Hopper's warpgroup products.
#include "gpu/launch/decode_latent.h"

#include <algorithm>
#include <memory>

#include "kernels/forward/decode_latent_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kLatentLanes = 3 * kWarpgroupLanes;  // two warpgroups that multiply, and a loader's

class DecodeLatent final : public LatentDecode {
 public:
  explicit DecodeLatent(const Target& target) : LatentDecode(target, *target.extends) {}

 private:
  static constexpr int64_t kTileKeys = 64;

  Support takes_keys(const Problem& p) const override {
    if (Support support = tma_reads_all_keys(p); !support.yes) return support;
    if (Support support = takes_few_queries(p); !support.yes) return support;
    if (Support support = tma_takes_strides("k", p.k, p.k_shape()); !support.yes) return support;
    return tma_takes_pages(p);
  }
  int64_t block_rows(const Problem& /*p*/) const override { return kWarpgroupRows; }
  static int64_t split_tiles(const Problem& p, int64_t splits) {
    return tiles_of(tiles_of(p.seqlen_k, splits), kTileKeys);
  }
  // The number of splits whose estimated time is least; of those within 2 %, the smallest.
  int usual_splits(const Problem& p, int compute_units) const override {
    int64_t best = 1;
    double best_cost = cost(p, 1, compute_units);
    for (int64_t splits = 2; splits <= most(p); ++splits) {
      if (const double its = cost(p, splits, compute_units); its < 0.98 * best_cost) {
        best = splits;
        best_cost = its;
      }
    }
    return static_cast<int>(best);
  }
  // Estimated microseconds on an H200 (docs/lab/nvidia_decode.md): a workgroup a multiprocessor, in
  // rounds, or as long as memory takes; with splits also a second launch, and their results,
  // written and read.
  double cost(const Problem& p, int64_t splits, int compute_units) const {
    constexpr double kTile = 1.9, kStartAndEnd = 6, kLaunch = 3, kBytes = 3.5e6;
    const int64_t units = std::max(1, compute_units);
    const auto rounds = static_cast<double>(tiles_of(groups(p) * splits, units));
    const auto tiles = static_cast<double>(split_tiles(p, splits));
    const auto read = static_cast<double>(p.batch * p.num_kv_heads * p.seqlen_k * p.head_dim *
                                          static_cast<int64_t>(size_of(p.dtype)));
    const double multiplying = rounds * (kTile * tiles + kStartAndEnd);
    const double parts = splits == 1 ? 0
                                     : static_cast<double>(2 * splits * p.batch * p.num_heads *
                                                           p.seqlen_q * (p.head_dim_v + 2) * 4);
    return std::max(multiplying, read / kBytes) + (splits > 1 ? kLaunch + parts / kBytes : 0);
  }

  Specialisation specialisation(const Problem& p, int num_splits) const override {
    constexpr int64_t kProductDims = 16;
    const int64_t panel = target().panel_columns;
    Specialisation s;
    s.entry = "forward/decode_latent.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, 2 * panel) / 2);  // of a warpgroup
    s.block_m = kWarpgroupRows;
    s.block_n = kTileKeys;
    s.workgroup = kLatentLanes;
    s.packed_rows = 1;
    s.tensor_maps = 1;
    s.splits = num_splits > 1 ? 1 : 0;
    s.lds_bytes = kernels::DecodeLatentLayout::of(s.head_dim, s.head_dim_v).total;
    specialise_for(p, s);
    s.exact_dims = s.head_dim == p.head_dim && 2 * s.head_dim_v == p.head_dim_v ? 1 : 0;
    return s;
  }
  // Partial results, and what merges them, are those of decode.h, which also runs where pointers
  // are no multiples of 16.
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const override {
    LaunchPlan plan = decode_plan(p, usual(), chip, num_splits);
    if (plan.launches.empty()) return plan;
    plan.unaligned = std::make_shared<LaunchPlan>(plan);
    plan.launches.front() = {specialisation(p, num_splits), groups(p) * num_splits, true};
    plan.values_in_keys = true;
    plan.arguments.row_tiles = static_cast<int>(row_tiles(p));
    plan.arguments.split_keys = kTileKeys * split_tiles(p, num_splits);
    return plan;
  }
};

}  // namespace

const Family* make_decode_latent(const Target& target) {
  if (target.decode_latent) return make_decode_latent_waves(target);
  return target.panel_columns > 0 ? new DecodeLatent(target) : nullptr;
}

}  // namespace fulmen::gpu
