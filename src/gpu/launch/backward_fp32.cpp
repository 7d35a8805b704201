// kernels/backward/backward_fp32.h: gradients of fp32, by matrix instructions.
#include <algorithm>
#include <span>
#include <string>

#include "gpu/launch/backward.h"
#include "gpu/launch/fp32.h"
#include "kernels/tile/fp32/layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kGivesKeys = kGivesDk | kGivesDv;

class BackwardFp32 final : public Family {
 public:
  explicit BackwardFp32(const Target& target) : Family(target), tiles_(*target.backward_fp32) {}
  std::string_view name() const noexcept override { return "backward_fp32"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = takes_fp32(p, target(), tiles_.shapes.back().max_head_dim); !support.yes)
      return support;
    const BackwardShapes& shapes = shapes_for(p, chip);
    for (const int outputs : {kGivesDq, shapes.split_keys ? kGivesDk : kGivesKeys}) {
      const Specialisation s = specialisation(p, chip, shapes, outputs);
      if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, compute_units, shapes_for(p, chip));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const BackwardShapes usual = shapes_for(p, chip);
    tuning::Space space;
    // AMD: registers and LDS leave no choice.
    if (chip.vendor == Vendor::amd) return space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"query_block_n", usual.queries.block_n, {16, 32}},
                        {"query_buffers", usual.queries.buffers, {1, 2}},
                        {"query_min_workgroups", usual.queries.min_workgroups, {1, 2, 3}},
                        {"key_block_n", usual.keys.block_n, {16, 32}},
                        {"key_buffers", usual.keys.buffers, {1, 2}},
                        {"key_min_workgroups", usual.keys.min_workgroups, {1, 2, 3}}};
    tuning::include_usual(space);
    space.takes = [this, p, chip, values = space.usual()](std::span<const int> v) -> Support {
      if (std::equal(v.begin(), v.end(), values.begin())) return {};
      return takes(p, chip, with(shapes_for(p, chip), v));
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, chip, compute_units, with(shapes_for(p, chip), v));
  }

 private:
  // block_n, buffers and min_workgroups of queries, then of keys.
  static BackwardShapes with(BackwardShapes shapes, std::span<const int> v) {
    for (BackwardShape* shape : {&shapes.queries, &shapes.keys}) {
      shape->block_n = v[0];
      shape->buffers = v[1];
      shape->min_workgroups = v[2];
      v = v.subspan(3);
    }
    return shapes;
  }
  Support takes(const Problem& p, const Chip& chip, const BackwardShapes& shapes) const {
    for (const int outputs : {kGivesDq, shapes.split_keys ? kGivesDk : kGivesKeys}) {
      const Specialisation s = specialisation(p, chip, shapes, outputs);
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      if (Support support = keys_fill_products(s.block_n, target()); !support.yes) return support;
      const int sums = outputs == kGivesKeys ? s.head_dim + s.head_dim_v : s.head_dim;
      const int64_t each = int64_t{s.block_m} * (sums + 3 * s.block_n);
      if (Support support = registers_fit(each / s.workgroup, chip, s.workgroup / chip.wave_size,
                                          s.min_waves, s.min_workgroups);
          !support.yes) {
        return support;
      }
    }
    return {};
  }
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units,
                     const BackwardShapes& shapes) const {
    const auto add = [&](BackwardPlan& plan, int outputs) {
      if (outputs == 0) return;
      Specialisation s = specialisation(p, chip, shapes, outputs);
      if (outputs == kGivesDq && chip.vendor != Vendor::amd) store_bias(p, s);
      plan.add_rows(s, outputs);
    };
    BackwardPlan plan(p, compute_units);
    const Specialisation queries = specialisation(p, chip, shapes, kGivesDq);
    plan.add_row_statistics(queries);
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    add(plan, p.dq.present ? kGivesDq : 0);
    add(plan, shapes.split_keys ? dk : dk | dv);
    if (shapes.split_keys) add(plan, dv);
    plan.add_bias(target(), chip);
    plan.add_sinks(queries);
    plan.add_tensor_gradients(queries, chip);
    return plan.take();
  }
  const BackwardShapes& shapes_for(const Problem& p, const Chip& chip) const {
    for (const BackwardShapes& shapes : tiles_.shapes) {
      if (std::max(p.head_dim, p.head_dim_v) > shapes.max_head_dim) continue;
      const Specialisation queries = specialisation(p, chip, shapes, kGivesDq),
                           keys = specialisation(p, chip, shapes,
                                                 shapes.split_keys ? kGivesDk : kGivesKeys);
      if (std::max(queries.lds_bytes * queries.min_workgroups,
                   keys.lds_bytes * keys.min_workgroups) <= chip.lds_bytes) {
        return shapes;
      }
    }
    return tiles_.shapes.back();
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, const BackwardShapes& shapes,
                                int outputs) const {
    const BackwardShape& shape = outputs == kGivesDq ? shapes.queries : shapes.keys;
    Specialisation s;
    s.entry = "backward/backward_fp32.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.head_dim_v =
        static_cast<int>(round_up(p.head_dim_v, std::max(tiles_.value_dims, target().mma_k)));
    set_shape(shape, chip, s);
    s.outputs = outputs;
    const bool dv = (outputs & kGivesDv) != 0, first = (outputs & (kGivesDq | kGivesDk)) != 0;
    s.lds_bytes = kernels::BackwardFp32Layout::of({.planes_depth = target().transposed_depth(),
                                                   .head_dim = s.head_dim,
                                                   .head_dim_v = s.head_dim_v,
                                                   .block_m = s.block_m,
                                                   .block_n = s.block_n,
                                                   .buffers = s.buffers,
                                                   .rows_in_lds = shape.rows_in_lds,
                                                   .first_values = first,
                                                   .second_values = dv,
                                                   .needs_dout = first})
                      .total;
    specialise_fp32_for(p, s);
    read_mask_as_bits(p, s);
    return s;
  }
  const BackwardFp32Tiles& tiles_;
};

}  // namespace

const Family* make_backward_fp32(const Target& target) {
  return target.backward_fp32 ? new BackwardFp32(target) : nullptr;
}

}  // namespace fulmen::gpu
