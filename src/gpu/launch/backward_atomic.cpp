// kernels/backward_atomic.h: tiles and registers of NVIDIA's chips from sm_80.
#include <array>

#include "gpu/launch/backward.h"
#include "kernels/layout.h"

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

class BackwardAtomic final : public Family {
 public:
  std::string_view name() const noexcept override { return "backward_atomic"; }
  std::string_view target() const noexcept override { return kTarget.name; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool deterministic() const noexcept override { return false; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.dbias.present) return Support::no("it has no dbias");
    if (!p.dq.present || !(p.dk.present || p.dv.present)) {
      return Support::no("dq alone, and dk and dv without it, need no atomics");
    }
    const Specialisation s = specialisation(p, chip);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  double rank(const Problem& p) const override {
    // One tile of keys: sums in memory would save nothing.
    constexpr int64_t kFewKeys = 64;
    return p.seqlen_k <= kFewKeys ? 18 : 22;
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation s = specialisation(p, chip);
    BackwardPlan plan(p, compute_units);
    plan.add_row_numbers(s);
    plan.add_with_atomics(s, s.outputs);
    plan.add_sinks(s);
    return plan.take();
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
  static Specialisation specialisation(const Problem& p, const Chip& chip) {
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
    s.entry = "backward_atomic.h";
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
    s.outputs = kGivesDq | (p.dk.present ? kGivesDk : 0) | (p.dv.present ? kGivesDv : 0);
    s.lds_bytes = lds_bytes(s);
    specialise_for(p, s);
    s.sinks = false;  // they are in the log-sum-exp
    return s;
  }
};

}  // namespace

const Family* backward_atomic_family() {
  static const BackwardAtomic kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
