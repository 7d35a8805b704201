// What the kernels of latent attention share: launch/decode_latent.cpp by Hopper's warpgroup
// products, launch/decode_latent_waves.cpp by a wave's matrix instructions.
#pragma once

#include <algorithm>
#include <string>

#include "gpu/launch/decode.h"

namespace fulmen::gpu {

// Few queries whose values are the first dims of their keys (Problem::values_in_keys). The keys may
// be split; the number of splits is the one parameter.
class LatentDecode : public Family {
 public:
  // usual: whose decode.h serves where pointers are no multiples of 16, and where v is not k's
  // memory after all.
  LatentDecode(const Target& target, const Target& usual) : Family(target), usual_(usual) {}
  std::string_view name() const noexcept override { return "decode_latent"; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (!p.values_in_keys)
      return Support::no(
          "it takes values that are the first dims of keys wider than 256, in the same memory");
    if (has_masks(p))
      return Support::no(
          "values that a keep_mask, mask_mod or block mask leaves out may be NaN, and are "
          "multiplied");
    if (Support support = takes_keys(p); !support.yes) return support;
    if (Support support = lds_fits(specialisation(p, 1).lds_bytes, chip); !support.yes)
      return support;
    if (Support support = decode_serves(p, usual_, chip); !support.yes) return support;
    return grid_fits(groups(p) * most(p));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, usual_splits(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    return splits_space(chip, usual_splits(p, compute_units), most(p));
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, chip, v[0]);
  }

 protected:
  static constexpr int64_t kMinSplitKeys = 256;

  static Support takes_few_queries(const Problem& p) {
    constexpr int64_t kMostQueries = 8;  // more fill tiles of one head's queries
    if (p.seqlen_q <= kMostQueries) return {};
    return Support::no("seqlen_q is " + std::to_string(p.seqlen_q) + ", up to " +
                       std::to_string(kMostQueries) + " are served");
  }
  static int64_t most(const Problem& p) {
    constexpr int64_t kMostSplits = 64;
    return std::min(kMostSplits, most_splits(p, kMinSplitKeys));
  }
  int64_t row_tiles(const Problem& p) const { return tiles_of(packed_rows(p), block_rows(p)); }
  // Workgroups without splits.
  int64_t groups(const Problem& p) const { return p.batch * p.num_kv_heads * row_tiles(p); }
  const Target& usual() const noexcept { return usual_; }

 private:
  // What the kernel says of the queries and the keys.
  virtual Support takes_keys(const Problem& p) const = 0;
  // Query rows of a workgroup.
  virtual int64_t block_rows(const Problem& p) const = 0;
  virtual int usual_splits(const Problem& p, int compute_units) const = 0;
  virtual Specialisation specialisation(const Problem& p, int num_splits) const = 0;
  virtual LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const = 0;

  const Target& usual_;
};

// decode_latent_waves.h for a target that has tiles for it.
const Family* make_decode_latent_waves(const Target& target);

}  // namespace fulmen::gpu
