// kernels/forward/prefill_portable.h: the path without matrix instructions.
#include "gpu/launch/family.h"

namespace fulmen::gpu {
namespace {

class Portable final : public Family {
 public:
  explicit Portable(const Target& target) : Family(target), tiles_(*target.portable) {}
  std::string_view name() const noexcept override { return "prefill"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override {
    return grid_fits(workgroups(p));
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/) const override {
    Specialisation s;
    s.entry = "forward/prefill_portable.h";
    s.head_dim = static_cast<int>(round_up(p.head_dim, tiles_.chunk));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, tiles_.chunk));
    s.block_m = tiles_.block_m;
    s.block_n = tiles_.block_n;
    s.workgroup = tiles_.workgroup;
    // Two chunks, rows one longer than a tile, and the probabilities.
    s.lds_bytes = 4 * ((2 * tiles_.chunk + 1) * (s.block_m + 1) + s.block_m * (s.block_n + 1));
    specialise_for(p, s);
    s.whole_rows = s.whole_dims = s.exact_dims = s.whole_bias = s.plain_scale = s.tiles_in_pages =
        false;  // nothing depends on them
    LaunchPlan plan;
    plan.launches.push_back({s, workgroups(p)});
    plan.arguments = arguments_of(p);
    plan.arguments.row_tiles = static_cast<int>(tiles_of(p.seqlen_q, tiles_.block_m));
    return plan;
  }

 private:
  int64_t workgroups(const Problem& p) const {
    return tiles_of(p.seqlen_q, tiles_.block_m) * p.batch * p.num_heads;
  }
  const PortableTiles& tiles_;
};

}  // namespace

const Family* make_prefill_portable(const Target& target) {
  return target.portable ? new Portable(target) : nullptr;
}

}  // namespace fulmen::gpu
