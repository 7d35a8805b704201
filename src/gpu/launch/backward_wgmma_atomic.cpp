// kernels/backward/backward_wgmma_atomic.h: tiles of Hopper's warpgroup products.
#include <algorithm>

#include "gpu/launch/backward.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kLanes = 256;  // two warpgroups

class BackwardWgmmaAtomic final : public AtomicFamily {
 public:
  std::string_view name() const noexcept override { return "backward_wgmma_atomic"; }
  std::string_view target() const noexcept override { return "sm90"; }
  double rank(const Problem& p) const override {
    // Few keys, and dims that fill half of a panel's columns, are better served by narrower products.
    constexpr int64_t kFewKeys = 64;
    if (p.seqlen_k <= kFewKeys) return 17;
    return std::max(p.head_dim, p.head_dim_v) > kPanelColumns / 2 ? 24 : 21;
  }

 private:
  Specialisation specialisation(const Problem& p, const Chip& /*chip*/) const override {
    // Above, the sums of 64 keys take the registers of two warpgroups.
    constexpr int64_t kMostOwnDims = 128;
    Specialisation s;
    s.entry = "backward/backward_wgmma_atomic.h";
    s.target = "sm90";
    s.dim_groups = std::max(p.head_dim, p.head_dim_v) > kMostOwnDims ? 2 : 1;
    const int64_t multiple = kPanelColumns * s.dim_groups;
    s.head_dim = static_cast<int>(round_up(p.head_dim, multiple));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, multiple));
    s.block_m = 128 / s.dim_groups;
    s.block_n = 64;
    s.workgroup = kLanes;
    s.outputs = outputs_of(p);
    // Of tiles of queries, as measured on an H200: one in flight while one is computed, or two. Narrow heads need one more, where
    // one warpgroup is behind the other.
    s.buffers = s.head_dim <= kPanelColumns ? 4 : s.dim_groups == 1 && (p.window_left >= 0 || p.window_right >= 0) ? 3 : 2;
    s.lds_bytes = kernels::WarpgroupAtomicLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n, s.buffers).total;
    specialise_for(p, s);
    return s;
  }
};

}  // namespace

const Family* backward_wgmma_atomic_family() {
  static const BackwardWgmmaAtomic kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
