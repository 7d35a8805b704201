// kernels/backward/backward.h: tiles and registers for each target.
#include "gpu/launch/backward.h"

#include <array>

#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

struct TileShape {
  int block_m, block_n, waves;
  int buffers;
  bool rows_in_lds;
  int min_waves, min_workgroups;
  bool late = false;  // the columns' next tile is fetched only when it is needed: a few registers less
};

// For head dims up to max_head_dim (the larger of q's and v's): the rows are queries, or keys.
struct Shapes {
  int max_head_dim;
  TileShape queries, keys;
  bool split_keys;  // dk and dv by a launch each: together their sums would not fit in registers
  // Above this head_dim keys meet 16 queries at a time where there is a bias or a mask: its addresses need registers.
  int narrow_above = 256;
  // From this on, of score_registers(), dk and dv come by a launch each, too.
  int split_from = 100;
};

// What a problem does to scores, by the registers that it takes: addresses of a bias or a mask most.
int score_registers(const Problem& p) {
  const auto one = [](bool present) { return present ? 1 : 0; };
  return 2 * (one(p.bias.present) + one(p.keep_mask.present)) + one(p.alibi_slopes.present) + one(p.softcap > 0) +
         one(p.dropout > 0) + one(p.cu_seqlens_q.present);
}

struct Target {
  MatrixTarget matrix;
  int max_bias_dim;  // most head_dim with which dbias beside dq fits in registers
  std::array<Shapes, 3> shapes;
};

constexpr std::array kTargets{
    // Both halves of a wave hold the same operands: rows of more than 64 dims wait in LDS.
    Target{kMatrixTargets[0],
           32,
           {{{64, {128, 32, 8, 1, false, 1, 1}, {128, 32, 8, 1, false, 1, 1}, false, 32, 4},
             {128, {64, 32, 4, 1, true, 1, 1}, {64, 16, 4, 1, true, 1, 1}, false, 256, 3},
             {256, {32, 16, 2, 1, true, 1, 1, true}, {32, 16, 2, 1, true, 1, 1, true}, true}}}},
    Target{kMatrixTargets[1],
           64,
           {{{64, {128, 32, 8, 1, false, 1, 1}, {128, 32, 8, 1, false, 1, 1}, false, 256, 4},
             {128, {128, 32, 8, 1, false, 1, 1}, {64, 16, 4, 1, true, 1, 1}, false, 256, 3},
             {256, {32, 16, 2, 1, true, 1, 1, true}, {32, 16, 2, 1, true, 1, 1, true}, true}}}},
    Target{kMatrixTargets[2],
           128,
           {{{64, {64, 32, 4, 1, false, 2, 1}, {64, 32, 4, 1, false, 2, 1}, false},
             {128, {64, 32, 4, 1, false, 2, 1}, {64, 32, 4, 1, false, 1, 1}, false},
             {256, {64, 16, 4, 1, false, 1, 1}, {64, 16, 4, 1, false, 1, 1}, false}}}},
    Target{kMatrixTargets[3],
           128,
           {{{64, {128, 64, 4, 2, false, 1, 2}, {128, 32, 4, 2, false, 1, 2}, false},
             {128, {64, 64, 4, 2, false, 1, 2}, {64, 64, 4, 2, false, 1, 2}, false},
             {256, {64, 32, 4, 1, true, 1, 1}, {128, 64, 8, 2, false, 1, 1}, true}}}},
};

class Backward final : public Family {
 public:
  explicit Backward(const Target& target) : target_(target) {}
  std::string_view name() const noexcept override { return "backward"; }
  std::string_view target() const noexcept override { return target_.matrix.name; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    for (const int outputs : {kGivesDq, kGivesDk | kGivesDv}) {
      const Specialisation s = specialisation(p, chip, outputs);
      if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  double rank(const Problem& /*problem*/) const override { return 20; }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    BackwardPlan plan(p, compute_units);
    const Specialisation queries = specialisation(p, chip, kGivesDq);
    plan.add_row_statistics(queries);
    Specialisation bias = queries;
    const bool with_bias = p.batch > 0 && p.seqlen_q > 0 && holds_all_keys(p, chip, bias);
    if (p.dq.present && !with_bias) plan.add_rows(queries, kGivesDq);
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    if (splits_keys(p) && dk != 0 && dv != 0) {
      plan.add_rows(specialisation(p, chip, dk), dk);
      plan.add_rows(specialisation(p, chip, dv), dv);
    } else if ((dk | dv) != 0) {
      plan.add_rows(specialisation(p, chip, dk | dv), dk | dv);
    }
    if (with_bias) {
      plan.add_bias(bias, bias.outputs);
    } else {
      plan.add_bias(backward_portable_kernel(p), kGivesDbias);
    }
    plan.add_sinks(queries);
    return plan.take();
  }

 private:
  int dims(int64_t dim) const { return static_cast<int>(round_up(dim, target_.matrix.depth)); }
  const Shapes& shapes_for(const Problem& p) const {
    std::size_t n = 0;
    while (n + 1 < target_.shapes.size() && dims(std::max(p.head_dim, p.head_dim_v)) > target_.shapes[n].max_head_dim) ++n;
    return target_.shapes[n];
  }
  bool splits_keys(const Problem& p) const { return shapes_for(p).split_keys || score_registers(p) >= shapes_for(p).split_from; }
  // Whether one tile of columns can hold all keys, so that dbias comes beside dq (chess boards): the kernel for both.
  bool holds_all_keys(const Problem& p, const Chip& chip, Specialisation& s) const {
    constexpr int kMostKeys = 64;
    if (!p.dbias.present || p.seqlen_k < 1 || p.seqlen_k > kMostKeys || std::max(s.head_dim, s.head_dim_v) > target_.max_bias_dim)
      return false;
    s.block_m = s.block_n = kMostKeys;
    s.workgroup = 4 * chip.wave_size;
    s.buffers = 1;
    s.queries_in_lds = false;
    s.early_loads = false;
    s.min_waves = 1;
    s.min_workgroups = 2;
    s.outputs = kGivesDbias | (p.dq.present ? kGivesDq : 0);
    s.lds_bytes = lds_bytes(s);
    return s.lds_bytes <= chip.lds_bytes;
  }
  int lds_bytes(const Specialisation& s) const {
    return kernels::BackwardLayout::of({.transposed_values = target_.matrix.transposed_values,
                                        .head_dim = s.head_dim,
                                        .head_dim_v = s.head_dim_v,
                                        .block_m = s.block_m,
                                        .block_n = s.block_n,
                                        .buffers = s.buffers,
                                        .rows_in_lds = s.queries_in_lds,
                                        .first_values = (s.outputs & (kGivesDq | kGivesDk)) != 0,
                                        .second_values = (s.outputs & kGivesDv) != 0})
        .total;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, int outputs) const {
    TileShape shape = outputs == kGivesDq ? shapes_for(p).queries : shapes_for(p).keys;
    const bool by_score = p.bias.present || p.keep_mask.present;
    const bool narrow = by_score && std::max(p.head_dim, p.head_dim_v) > shapes_for(p).narrow_above;
    if (narrow && outputs != kGivesDq) shape.block_n = 16;
    // No wave without rows: chess boards have 64.
    const int64_t rows = outputs == kGivesDq ? p.seqlen_q : p.seqlen_k;
    while (rows <= shape.block_m / 2 && shape.block_m > 16 * shape.waves) shape.block_m /= 2;
    while (rows <= shape.block_m / 2 && shape.waves > 4) {
      shape.block_m /= 2;
      shape.waves /= 2;
    }
    if (splits_keys(p) && outputs == (kGivesDk | kGivesDv)) outputs = kGivesDk;
    Specialisation s;
    s.entry = "backward/backward.h";
    s.target = target_.matrix.name;
    s.head_dim = dims(p.head_dim);
    s.head_dim_v = dims(p.head_dim_v);
    s.block_m = shape.block_m;
    s.block_n = shape.block_n;
    s.workgroup = shape.waves * chip.wave_size;
    s.buffers = shape.buffers;
    s.queries_in_lds = shape.rows_in_lds;
    s.early_loads = !shape.late;
    s.min_waves = shape.min_waves;
    s.min_workgroups = shape.min_workgroups;
    s.outputs = outputs;
    s.lds_bytes = lds_bytes(s);
    specialise_for(p, s);
    return s;
  }
  const Target& target_;
};

}  // namespace

std::vector<const Family*> backward_families() {
  std::vector<const Family*> list;
  for (const Target& target : kTargets) list.push_back(new Backward(target));
  return list;
}

}  // namespace fulmen::gpu
