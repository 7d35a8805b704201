// kernels/backward/backward_wgmma.h: tiles of Hopper's warpgroup products, one side's rows a launch.
#include <algorithm>
#include <array>
#include <string>

#include "gpu/launch/backward.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kBlockN = 64;
constexpr int64_t kMostRows = 2147483647 - kBlockN;

struct TileShape {
  int block_m;  // 64 rows a warpgroup
  int buffers;  // of tiles of columns
  int min_workgroups = 1;
  bool second_early = true;
};

// For head dims up to max_head_dim (the larger of q's and v's), as measured on an H200.
struct Shapes {
  int64_t max_head_dim;
  TileShape queries, keys;
  TileShape modified_keys;  // of scores that more than the band modifies, or rows that move by element: registers for addresses
  bool split_keys = false;  // dk and dv by a launch each: together their sums would not fit in registers
  TileShape values{};       // of dv then
};

constexpr std::array kShapes{
    Shapes{64, {128, 4, 2}, {192, 4}, {128, 4}},
    Shapes{128, {128, 4}, {128, 4}, {128, 4}},
    Shapes{256, {128, 2, 1, false}, {128, 2, 1, false}, {128, 2, 1, false}, true, {128, 2}},
};

class BackwardWgmma final : public Family {
 public:
  std::string_view name() const noexcept override { return "backward_wgmma"; }
  std::string_view target() const noexcept override { return "sm90"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.dbias.present) return Support::no("it has no dbias");
    const int64_t rows = std::max(p.seqlen_q, p.seqlen_k);
    if (rows > kMostRows) return Support::no(std::to_string(rows) + " rows, a tile's place is a number of 32 bits");
    for (const int outputs : {kGivesDq, kGivesDk, kGivesDv}) {
      if (Support support = lds_fits(specialisation(p, outputs).lds_bytes, chip); !support.yes) return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  double rank(const Problem& p) const override {
    // Dims that fill half of a panel's columns, and squares of one tile, are better served by narrower products.
    constexpr int64_t kTile = 64, kWide = 192;
    const int64_t dims = std::max(p.head_dim, p.head_dim_v);
    const bool square = p.seqlen_q <= kTile && p.seqlen_k <= kTile && dims <= kWide;
    return dims <= kPanelColumns / 2 || square ? 16 : 23;
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int compute_units) const override {
    BackwardPlan plan(p, compute_units);
    const Specialisation queries = specialisation(p, kGivesDq);
    plan.add_row_statistics(queries);
    if (p.dq.present) plan.add_rows(queries, kGivesDq);
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    if (shapes_for(p).split_keys) {
      if (dk != 0) plan.add_rows(specialisation(p, dk), dk);
      if (dv != 0) plan.add_rows(specialisation(p, dv), dv);
    } else if ((dk | dv) != 0) {
      plan.add_rows(specialisation(p, dk | dv), dk | dv);
    }
    plan.add_sinks(queries);
    return plan.take();
  }

 private:
  static const Shapes& shapes_for(const Problem& p) {
    std::size_t n = 0;
    while (n + 1 < kShapes.size() && std::max(p.head_dim, p.head_dim_v) > kShapes[n].max_head_dim) ++n;
    return kShapes[n];
  }
  static const TileShape& shape_for(const Problem& p, const Specialisation& s) {
    const Shapes& shapes = shapes_for(p);
    if (s.outputs == kGivesDq) return shapes.queries;
    if (shapes.split_keys && s.outputs == kGivesDv) return shapes.values;
    return s.plain_scale && !s.dropout && s.whole_rows ? shapes.keys : shapes.modified_keys;
  }
  static int dims(int64_t dim) {
    int rounded = kPanelColumns;
    while (rounded < dim) rounded *= 2;
    return rounded;
  }
  static Specialisation specialisation(const Problem& p, int outputs) {
    Specialisation s;
    s.entry = "backward/backward_wgmma.h";
    s.target = "sm90";
    s.outputs = outputs;
    s.head_dim = dims(p.head_dim);
    s.head_dim_v = dims(p.head_dim_v);
    s.block_n = kBlockN;
    specialise_for(p, s);
    const TileShape& shape = shape_for(p, s);
    s.block_m = shape.block_m;
    s.workgroup = 2 * shape.block_m;  // four waves have 64 rows
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    s.early_loads = shape.second_early;
    s.lds_bytes = kernels::WarpgroupLayout::of({.head_dim = s.head_dim,
                                                .head_dim_v = s.head_dim_v,
                                                .block_m = s.block_m,
                                                .block_n = s.block_n,
                                                .buffers = s.buffers,
                                                .second_early = s.early_loads,
                                                .second_rows = outputs != kGivesDv})
                      .total;
    return s;
  }
};

}  // namespace

const Family* backward_wgmma_family() {
  static const BackwardWgmma kFamily;
  return &kFamily;
}

}  // namespace fulmen::gpu
