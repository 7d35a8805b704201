// kernels/backward/backward_wgmma.h: warpgroup products, one side's rows a launch.
#include <algorithm>
#include <limits>
#include <string>

#include "gpu/launch/backward.h"
#include "kernels/backward/backward_wgmma_layout.h"

namespace fulmen::gpu {
namespace {

class BackwardWgmma final : public Family {
 public:
  explicit BackwardWgmma(const Target& target) : Family(target), tiles_(*target.backward_wgmma) {}
  std::string_view name() const noexcept override { return "backward_wgmma"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    const int64_t rows = std::max(p.seqlen_q, p.seqlen_k);
    if (rows > std::numeric_limits<int>::max() - tiles_.block_n)
      return Support::no(std::to_string(rows) + " rows, a tile's place is a number of 32 bits");
    for (const int outputs : {kGivesDq, kGivesDk, kGivesDv}) {
      if (Support support = lds_fits(specialisation(p, outputs).lds_bytes, chip); !support.yes)
        return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, compute_units, {});
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const Specialisation queries = specialisation(p, kGivesDq),
                         keys = specialisation(p, keys_outputs(p));
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"query_block_m", queries.block_m, {64, 128, 192}},
                        {"query_buffers", queries.buffers, {2, 3, 4}},
                        {"query_min_workgroups", queries.min_workgroups, {1, 2}},
                        {"key_block_m", keys.block_m, {64, 128, 192}},
                        {"key_buffers", keys.buffers, {2, 3, 4}},
                        {"key_min_workgroups", keys.min_workgroups, {1, 2}}};
    space.takes = [this, chip, queries, keys](std::span<const int> v) -> Support {
      for (const auto& [usual, at] :
           {std::pair{queries, std::size_t{0}}, std::pair{keys, std::size_t{3}}}) {
        const Specialisation s = with(usual, v.subspan(at, 3));
        if (s.block_m == usual.block_m && s.buffers == usual.buffers &&
            s.min_workgroups == usual.min_workgroups)
          continue;
        if (Support support = takes(chip, s); !support.yes) return support;
      }
      return {};
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, chip, compute_units, v);
  }

  // v: the space's values, or none for the usual ones.
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units,
                     std::span<const int> v) const {
    const auto kernel = [&](int outputs) {
      const Specialisation s = specialisation(p, outputs);
      return v.empty() ? s : with(s, v.subspan(outputs == kGivesDq ? 0 : 3, 3));
    };
    BackwardPlan plan(p, compute_units);
    const Specialisation queries = kernel(kGivesDq);
    plan.add_row_statistics(queries);
    if (p.dq.present) {
      Specialisation rows = queries;
      store_bias(p, rows);
      plan.add_rows(rows, kGivesDq);
    }
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    if (shapes_for(p).split_keys) {
      if (dk != 0) plan.add_keys(kernel(dk), dk);
      if (dv != 0) plan.add_keys(kernel(dv), dv);
    } else if ((dk | dv) != 0) {
      plan.add_keys(kernel(dk | dv), dk | dv);
    }
    plan.add_bias(target(), chip);
    plan.add_sinks(queries);
    plan.add_tensor_gradients(queries, chip);
    return plan.take();
  }

 private:
  // Outputs of the launch whose tiles the parameters of keys set. Of two launches, which share the
  // parameters, it is that for dk.
  int keys_outputs(const Problem& p) const {
    return shapes_for(p).split_keys ? kGivesDk : kGivesDk | kGivesDv;
  }
  // block_m, buffers, min_workgroups
  Specialisation with(Specialisation s, std::span<const int> v) const {
    s.block_m = v[0];
    s.workgroup = 2 * s.block_m;  // four waves have 64 rows
    s.buffers = v[1];
    s.min_workgroups = v[2];
    s.lds_bytes = lds_bytes(s);
    return s;
  }
  Support takes(const Chip& chip, const Specialisation& s) const {
    if (s.early_loads == 0 && s.buffers != 2)
      return Support::no("tiles whose second tensor comes late have 2 buffers");
    if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
      return support;
    // A lane's of 64 rows: sums of one side's gradients, of two where dk comes beside dv, and two
    // tiles of scores.
    constexpr int kMost = 255, kRest = 32;
    const int sums = s.outputs == (kGivesDk | kGivesDv) ? s.head_dim + s.head_dim_v
                                                        : std::max(s.head_dim, s.head_dim_v);
    const int needed = sums / 2 + s.block_n + kRest,
              had = std::min(kMost, 65536 / (s.workgroup * s.min_workgroups) / 8 * 8);
    if (needed <= had) return {};
    return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " +
                       std::to_string(had));
  }
  int lds_bytes(const Specialisation& s) const {
    return kernels::WarpgroupLayout::of({.head_dim = s.head_dim,
                                         .head_dim_v = s.head_dim_v,
                                         .block_m = s.block_m,
                                         .block_n = s.block_n,
                                         .buffers = s.buffers,
                                         .second_early = s.early_loads != 0,
                                         .second_rows = s.outputs != kGivesDv})
        .total;
  }
  const BackwardWgmmaShapes& shapes_for(const Problem& p) const {
    std::size_t n = 0;
    while (n + 1 < tiles_.shapes.size() &&
           std::max(p.head_dim, p.head_dim_v) > tiles_.shapes[n].max_head_dim)
      ++n;
    return tiles_.shapes[n];
  }
  const BackwardWgmmaShape& shape_for(const Problem& p, const Specialisation& s) const {
    const BackwardWgmmaShapes& shapes = shapes_for(p);
    if (s.outputs == kGivesDq) return shapes.queries;
    if (shapes.split_keys && s.outputs == kGivesDv) return shapes.values;
    const bool few = p.seqlen_k <= shapes.modified_keys.block_m;
    return s.plain_scale && !s.dropout && s.whole_rows && !few ? shapes.keys : shapes.modified_keys;
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
    read_mask_as_bits(p, s);
    const BackwardWgmmaShape& shape = shape_for(p, s);
    s.block_m = shape.block_m;
    s.workgroup = 2 * shape.block_m;  // four waves have 64 rows
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    s.early_loads = shape.second_early;
    s.lds_bytes = lds_bytes(s);
    return s;
  }
  const BackwardWgmmaTiles& tiles_;
};

}  // namespace

LaunchPlan backward_wgmma_plan(const Problem& p, const Target& target, const Chip& chip,
                               int compute_units) {
  return BackwardWgmma(target).plan_of(p, chip, compute_units, {});
}

const Family* make_backward_wgmma(const Target& target) {
  return target.backward_wgmma ? new BackwardWgmma(target) : nullptr;
}

}  // namespace fulmen::gpu
