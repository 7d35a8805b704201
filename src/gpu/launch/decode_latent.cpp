// kernels/forward/decode_latent.h: few queries of latent attention, whose values are the first dims
// of its keys (Problem::values_in_keys), by Hopper's warpgroup products.
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/launch/decode.h"
#include "kernels/forward/decode_latent_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kLatentLanes = 3 * kWarpgroupLanes;  // two warpgroups that multiply, and a loader's

class DecodeLatent final : public Family {
 public:
  explicit DecodeLatent(const Target& target) : Family(target) {}
  std::string_view name() const noexcept override { return "decode_latent"; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = takes_values_in_keys(p); !support.yes) return support;
    if (Support support = tma_reads_all_keys(p); !support.yes) return support;
    if (p.seqlen_q > kMostQueries) {
      return Support::no("seqlen_q is " + std::to_string(p.seqlen_q) + ", up to " +
                         std::to_string(kMostQueries) + " are served");
    }
    if (Support support = tma_takes_strides("k", p.k, p.k_shape()); !support.yes) return support;
    if (Support support = tma_takes_pages(p); !support.yes) return support;
    if (Support support = lds_fits(specialisation(p, 1).lds_bytes, chip); !support.yes)
      return support;
    if (Support support = decode_serves(p, *target().extends, chip); !support.yes) return support;
    return grid_fits(groups(p) * most(p));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, choose_splits(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    return splits_space(chip, choose_splits(p, compute_units), most(p));
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, chip, v[0]);
  }

 private:
  static constexpr int64_t kTileKeys = 64;
  static constexpr int64_t kMostQueries = 8;  // more fill tiles of one head's queries
  static constexpr int64_t kMinSplitKeys = 256, kMostSplits = 64;

  static int64_t row_tiles(const Problem& p) { return tiles_of(packed_rows(p), kWarpgroupRows); }
  static int64_t groups(const Problem& p) { return p.batch * p.num_kv_heads * row_tiles(p); }
  static int64_t most(const Problem& p) {
    return std::min(kMostSplits, most_splits(p, kMinSplitKeys));
  }
  static int64_t split_tiles(const Problem& p, int64_t splits) {
    return tiles_of(tiles_of(p.seqlen_k, splits), kTileKeys);
  }
  // The number of splits whose estimated time is least; of those within 2 %, the smallest.
  static int choose_splits(const Problem& p, int compute_units) {
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
  static double cost(const Problem& p, int64_t splits, int compute_units) {
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

  Specialisation specialisation(const Problem& p, int num_splits) const {
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
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const {
    LaunchPlan plan = decode_plan(p, *target().extends, chip, num_splits);
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

Support takes_values_in_keys(const Problem& p) {
  if (p.values_in_keys) return {};
  return Support::no(
      "it takes values that are the first dims of keys wider than 256, in the same memory");
}

const Family* make_decode_latent(const Target& target) {
  if (target.decode_latent) return make_decode_latent_waves(target);
  return target.panel_columns > 0 ? new DecodeLatent(target) : nullptr;
}

}  // namespace fulmen::gpu
