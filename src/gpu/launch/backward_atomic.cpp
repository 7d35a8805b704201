// kernels/backward/backward_atomic.h: tiles and registers of NVIDIA's chips from sm_80.
#include <array>

#include "gpu/launch/backward.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

// block_m keys, block_n queries.
struct TileShape {
  int max_head_dim;  // the larger of q's and v's
  int block_m, block_n, waves;
  int buffers;
  int dim_groups;  // waves that share their keys, which stay in LDS then
  int min_workgroups;
};

// The first that fits in the chip's LDS.
constexpr std::array kShapes{
    TileShape{64, 128, 64, 4, 2, 1, 2}, TileShape{128, 128, 64, 8, 2, 2, 1}, TileShape{128, 64, 64, 4, 1, 2, 1},
    TileShape{256, 64, 64, 8, 2, 4, 1}, TileShape{256, 64, 64, 8, 1, 4, 1},
};

class BackwardAtomic final : public AtomicFamily {
 public:
  std::string_view name() const noexcept override { return "backward_atomic"; }
  std::string_view target() const noexcept override { return kTarget.name; }
  double rank(const Problem& p) const override {
    // One tile of keys: sums in memory would save nothing.
    constexpr int64_t kFewKeys = 64;
    return p.seqlen_k <= kFewKeys ? 18 : 22;
  }

 private:
  static constexpr const MatrixTarget& kTarget = kMatrixTargets[3];

  static int lds_bytes(const Specialisation& s) {
    return kernels::AtomicLayout::of({.transposed_values = kTarget.transposed_values,
                                      .head_dim = s.head_dim,
                                      .head_dim_v = s.head_dim_v,
                                      .block_m = s.block_m,
                                      .block_n = s.block_n,
                                      .buffers = s.buffers,
                                      .rows_in_lds = s.queries_in_lds,
                                      .first_values = (s.outputs & kGivesDk) != 0,
                                      .second_values = (s.outputs & kGivesDv) != 0,
                                      .dim_groups = s.dim_groups})
        .total;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip) const override {
    Specialisation s;
    for (TileShape shape : kShapes) {
      if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
      // No wave without keys: chess boards have 64. A wave has 16 of them at least.
      if (shape.dim_groups < 4 && p.seqlen_k <= shape.block_m / 2 && (shape.waves > 4 || shape.block_m > 16 * shape.waves)) {
        if (shape.waves > 4) shape.waves /= 2;
        shape.block_m /= 2;
      }
      s = of(p, chip, shape);
      if (s.lds_bytes <= chip.lds_bytes) break;
    }
    return s;
  }
  static Specialisation of(const Problem& p, const Chip& chip, const TileShape& shape) {
    // A wave's part of the dims is whole tiles of 16. A pair's waves have one of the two tensors each, of as many dims.
    const int64_t multiple = std::max(kTarget.depth, 16 * shape.dim_groups);
    const int64_t least = shape.dim_groups > 1 ? std::max(p.head_dim, p.head_dim_v) : 0;
    Specialisation s;
    s.entry = "backward/backward_atomic.h";
    s.target = kTarget.name;
    s.head_dim = static_cast<int>(round_up(std::max(p.head_dim, least), multiple));
    s.head_dim_v = static_cast<int>(round_up(std::max(p.head_dim_v, least), multiple));
    s.block_m = shape.block_m;
    s.block_n = shape.block_n;
    s.workgroup = shape.waves * chip.wave_size;
    s.buffers = shape.buffers;
    s.dim_groups = shape.dim_groups;
    s.queries_in_lds = shape.dim_groups > 1;
    s.min_workgroups = shape.min_workgroups;
    s.outputs = outputs_of(p);
    s.lds_bytes = lds_bytes(s);
    specialise_for(p, s);
    return s;
  }
};

}  // namespace

const Family* backward_atomic_family() {
  static const BackwardAtomic kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
