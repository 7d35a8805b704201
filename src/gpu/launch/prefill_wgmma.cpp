// kernels/forward/prefill_wgmma.h: tiles of Hopper's warpgroup products.
#include <algorithm>
#include <array>

#include "gpu/launch/family.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

// Tile shapes for head dims up to max_head_dim (the larger of q's and v's), and for as many keys at least. Of several the first
// counts. What measured fastest on an H200, see docs/lab/nvidia_forward.md: two workgroups a multiprocessor hide each other's
// start and end, larger tiles serve more products.
struct TileShape {
  int max_head_dim;
  int64_t min_keys;
  int warpgroups, block_n;  // of 64 rows each
  int min_workgroups;
};
constexpr std::array kShapes{TileShape{64, 4096, 3, 128, 1}, TileShape{64, 0, 2, 64, 2}, TileShape{128, 0, 3, 64, 1},
                             TileShape{256, 0, 2, 64, 1}};

constexpr int kLanes = 128, kRows = 64;  // a warpgroup's

class ForwardWgmma final : public Family {
 public:
  std::string_view name() const noexcept override { return "prefill_wgmma"; }
  std::string_view target() const noexcept override { return "sm90"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    const Specialisation s = specialisation(p);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(query_tile_workgroups(p, s));
  }
  double rank(const Problem& p) const override {
    // Few queries or keys, and dims that fill half of a panel's columns, are better served by narrower products.
    constexpr int64_t kFew = 64;
    if (p.seqlen_q <= kFew || p.seqlen_k <= kFew || std::max(p.head_dim, p.head_dim_v) <= kPanelColumns / 2) return 19;
    // So are lengths that leave a third of the largest tiles' rows empty: 128 and 256.
    const int64_t rows = int64_t{kRows} * shape_for(p).warpgroups;
    return rows > 2 * kRows && 3 * p.seqlen_q <= 2 * rows * tiles_of(p.seqlen_q, rows) ? 19 : 24;
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/) const override {
    return query_tile_plan(p, specialisation(p));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const TileShape& usual = shape_for(p);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"block_m", kRows * usual.warpgroups, {kRows, 2 * kRows, 3 * kRows}},
                        {"block_n", usual.block_n, {64, 128}},
                        {"min_workgroups", usual.min_workgroups, {1, 2, 3}}};
    space.takes = [p, chip](std::span<const int> v) -> Support {
      const Specialisation s = specialisation(p, shape_of(v));
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes) return support;
      // As the kernel shares out what a multiprocessor has; setmaxnreg gives up to 256 a lane.
      constexpr int kMostRegisters = 256, kRest = 24;
      const int warpgroups = s.block_m / kRows, start = 512 / s.min_workgroups / (warpgroups + 1) / 8 * 8;
      const int had = (start * (warpgroups + 1) - (start > 128 ? 40 : 32)) / warpgroups / 8 * 8;
      const int needed = (s.head_dim_v + s.block_n) / 2 + kRest;
      if (needed <= had && had <= kMostRegisters) return {};
      return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " + std::to_string(had) +
                         ", up to " + std::to_string(kMostRegisters) + " are given");
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/, std::span<const int> v) const override {
    return query_tile_plan(p, specialisation(p, shape_of(v)));
  }

 private:
  static TileShape shape_of(std::span<const int> v) { return {256, 0, v[0] / kRows, v[1], v[2]}; }
  static const TileShape& shape_for(const Problem& p) {
    const int64_t dim = std::max(p.head_dim, p.head_dim_v);
    return *std::find_if(kShapes.begin(), kShapes.end() - 1,
                         [&](const TileShape& s) { return dim <= s.max_head_dim && p.seqlen_k >= s.min_keys; });
  }
  static Specialisation specialisation(const Problem& p) { return specialisation(p, shape_for(p)); }
  static Specialisation specialisation(const Problem& p, const TileShape& shape) {
    Specialisation s;
    s.entry = "forward/prefill_wgmma.h";
    s.target = "sm90";
    s.head_dim = static_cast<int>(round_up(p.head_dim, kPanelColumns));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, kPanelColumns));
    s.block_m = kRows * shape.warpgroups;
    s.block_n = shape.block_n;
    s.workgroup = kLanes * (shape.warpgroups + 1);  // a producer
    s.buffers = 2;
    s.queries_in_lds = true;
    s.min_workgroups = shape.min_workgroups;
    s.lds_bytes = kernels::WarpgroupForwardLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n).total;
    specialise_for(p, s);
    return s;
  }
};

}  // namespace

const Family* prefill_wgmma_family() {
  static const ForwardWgmma kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
