// kernels/backward/backward_wgmma_atomic.h: gradients by one kernel of warpgroup products, dq by
// atomics.
#include <algorithm>

#include "gpu/launch/backward.h"
#include "kernels/backward/backward_wgmma_atomic_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kAtomicLanes = 2 * kWarpgroupLanes;

class BackwardWgmmaAtomic final : public AtomicFamily {
 public:
  using AtomicFamily::AtomicFamily;
  std::string_view name() const noexcept override { return "backward_wgmma_atomic"; }

 private:
  int lds_bytes(const Specialisation& s) const override {
    return kernels::WarpgroupAtomicLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n,
                                              s.buffers)
        .total;
  }
  // One is computed and one is in flight. Of narrow heads, whose warpgroups are a tile apart, one
  // more.
  std::vector<int> buffer_counts(const Specialisation& s) const override {
    return s.head_dim <= target().panel_columns ? std::vector<int>{3, 4, 5}
                                                : std::vector<int>{2, 3, 4};
  }
  Specialisation specialisation(const Problem& p, const Chip& /*chip*/) const override {
    const WgmmaAtomicTiles& tiles = *target().backward_wgmma_atomic;
    Specialisation s;
    s.entry = "backward/backward_wgmma_atomic.h";
    s.target = &target();
    s.dim_groups = std::max(p.head_dim, p.head_dim_v) > tiles.own_dims ? 2 : 1;
    const int64_t multiple = int64_t{target().panel_columns} * s.dim_groups;
    s.head_dim = static_cast<int>(round_up(p.head_dim, multiple));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, multiple));
    s.block_m = tiles.block_m / s.dim_groups;
    s.block_n = tiles.block_n;
    s.workgroup = kAtomicLanes;
    s.outputs = outputs_of(p);
    const bool band = has_band(p);
    s.buffers = s.dim_groups == 1 && band ? tiles.band_buffers : tiles.buffers;
    if (s.head_dim <= target().panel_columns) s.buffers = tiles.narrow_buffers;
    s.lds_bytes = lds_bytes(s);
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    store_bias(p, s);
    return s;
  }
};

}  // namespace

const Family* make_backward_wgmma_atomic(const Target& target) {
  return target.backward_wgmma_atomic ? new BackwardWgmmaAtomic(target) : nullptr;
}

}  // namespace fulmen::gpu
