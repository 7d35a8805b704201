// kernels/backward/backward_wgmma.h: warpgroup products, one side's rows a launch.
#include <algorithm>
#include <limits>
#include <string>

#include "gpu/launch/backward.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

class BackwardWgmma final : public Family {
 public:
  explicit BackwardWgmma(const Target& target) : Family(target), tiles_(*target.backward_wgmma) {}
  std::string_view name() const noexcept override { return "backward_wgmma"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.dbias.present) return Support::no("it has no dbias");
    const int64_t rows = std::max(p.seqlen_q, p.seqlen_k);
    if (rows > std::numeric_limits<int>::max() - tiles_.block_n)
      return Support::no(std::to_string(rows) + " rows, a tile's place is a number of 32 bits");
    for (const int outputs : {kGivesDq, kGivesDk, kGivesDv}) {
      if (Support support = lds_fits(specialisation(p, outputs).lds_bytes, chip); !support.yes) return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
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
  const BackwardWgmmaShapes& shapes_for(const Problem& p) const {
    std::size_t n = 0;
    while (n + 1 < tiles_.shapes.size() && std::max(p.head_dim, p.head_dim_v) > tiles_.shapes[n].max_head_dim) ++n;
    return tiles_.shapes[n];
  }
  const BackwardWgmmaShape& shape_for(const Problem& p, const Specialisation& s) const {
    const BackwardWgmmaShapes& shapes = shapes_for(p);
    if (s.outputs == kGivesDq) return shapes.queries;
    if (shapes.split_keys && s.outputs == kGivesDv) return shapes.values;
    return s.plain_scale && !s.dropout && s.whole_rows ? shapes.keys : shapes.modified_keys;
  }
  int dims(int64_t dim) const {
    int rounded = target().panel_columns;
    while (rounded < dim) rounded *= 2;
    return rounded;
  }
  Specialisation specialisation(const Problem& p, int outputs) const {
    Specialisation s;
    s.entry = "backward/backward_wgmma.h";
    s.target = &target();
    s.outputs = outputs;
    s.head_dim = dims(p.head_dim);
    s.head_dim_v = dims(p.head_dim_v);
    s.block_n = tiles_.block_n;
    specialise_for(p, s);
    const BackwardWgmmaShape& shape = shape_for(p, s);
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
                                                .second_early = s.early_loads != 0,
                                                .second_rows = outputs != kGivesDv})
                      .total;
    return s;
  }
  const BackwardWgmmaTiles& tiles_;
};

}  // namespace

const Family* make_backward_wgmma(const Target& target) { return target.backward_wgmma ? new BackwardWgmma(target) : nullptr; }

}  // namespace fulmen::gpu
