// kernels/backward/backward.h: any lengths.
#include "gpu/launch/backward.h"

#include <algorithm>

#include "kernels/backward/backward_layout.h"

namespace fulmen::gpu {
namespace {

// What a problem does to scores, by the registers that it takes: addresses of a bias or a mask
// most.
int score_registers(const Problem& p) {
  const auto one = [](bool present) { return present ? 1 : 0; };
  return 2 * (one(p.bias.present) + one(has_masks(p)) + one(has_score_mod(p))) +
         one(p.alibi_slopes.present) + one(p.softcap > 0) + one(p.dropout > 0) +
         one(p.cu_seqlens_q.present);
}

class Backward final : public Family {
 public:
  explicit Backward(const Target& target) : Family(target), tiles_(*target.backward) {}
  std::string_view name() const noexcept override { return "backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override {
    const int64_t most = tiles_.shapes.back().max_head_dim;
    return {most, most};
  }
  std::string_view why_no_wider() const noexcept override {
    const bool wide = tiles_.shapes.back().max_head_dim > kUsualHeadDim;
    return wide ? Family::why_no_wider()
                : "64 KiB of LDS and 256 registers a lane hold no tiles of heads wider than ";
  }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    for (const int outputs : {kGivesDq, kGivesDk | kGivesDv}) {
      const Specialisation s = specialisation(p, chip, outputs, 0);
      if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    }
    return grid_fits((std::max(p.seqlen_q, p.seqlen_k) + 15) / 16 * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, compute_units, {});
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation queries = specialisation(p, chip, kGivesDq, compute_units),
                         keys = specialisation(p, chip, kGivesDk | kGivesDv, compute_units);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"query_block_n", queries.block_n, {16, 32, 64}},
                        {"query_buffers", queries.buffers, {}},
                        {"query_min_workgroups", queries.min_workgroups, {}},
                        {"key_block_n", keys.block_n, {16, 32, 64}},
                        {"key_buffers", keys.buffers, {}},
                        {"key_min_workgroups", keys.min_workgroups, {}}};
    // Tiles come through registers, of which the compiler is told another way, on AMD's chips.
    for (std::size_t n = 0; n < space.parameters.size() && chip.vendor == Vendor::nvidia; ++n) {
      if (n % 3 != 0) space.parameters[n].values = {1, 2};
    }
    tuning::include_usual(space);
    space.takes = [this, p, chip, queries, keys,
                   usual = space.usual()](std::span<const int> v) -> Support {
      for (const auto& [s, at] :
           {std::pair{queries, std::size_t{0}}, std::pair{keys, std::size_t{3}}}) {
        if (std::equal(v.begin() + static_cast<std::ptrdiff_t>(at),
                       v.begin() + static_cast<std::ptrdiff_t>(at) + 3,
                       usual.begin() + static_cast<std::ptrdiff_t>(at))) {
          continue;
        }
        if (Support support = takes(p, chip, with(s, v.subspan(at, 3))); !support.yes)
          return support;
      }
      return {};
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, chip, compute_units, v);
  }

 private:
  // v: the space's values, or none for the usual ones.
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units,
                     std::span<const int> v) const {
    const auto kernel = [&](int outputs) {
      const Specialisation s = specialisation(p, chip, outputs, compute_units);
      return v.empty() ? s : with(s, v.subspan(outputs == kGivesDq ? 0 : 3, 3));
    };
    BackwardPlan plan(p, compute_units);
    const Specialisation queries = kernel(kGivesDq);
    plan.add_row_statistics(queries);
    Specialisation bias = queries;
    const bool with_bias = p.batch > 0 && p.seqlen_q > 0 && holds_all_keys(p, chip, bias);
    if (p.dq.present && !with_bias) {
      Specialisation rows = queries;
      // Beside a mask's bits AMD's scalar registers do not hold dbias's addresses.
      const bool full = chip.vendor == Vendor::amd && has_masks(p);
      if (rows.dim_groups == 1 && tiles_.stores_bias && !full) store_bias(p, rows);
      plan.add_rows(rows, kGivesDq);
    }
    const int dk = p.dk.present ? kGivesDk : 0, dv = p.dv.present ? kGivesDv : 0;
    if (splits_keys(p, chip, compute_units) && dk != 0 && dv != 0) {
      plan.add_rows(kernel(dk), dk);
      plan.add_rows(kernel(dv), dv);
    } else if ((dk | dv) != 0) {
      plan.add_rows(kernel(dk | dv), dk | dv);
    }
    if (with_bias) {
      plan.add_bias(bias, bias.outputs);
    } else {
      plan.add_bias(target(), chip);
    }
    plan.add_sinks(queries);
    plan.add_tensor_gradients(queries, chip);
    return plan.take();
  }
  // block_n, buffers, min_workgroups
  Specialisation with(Specialisation s, std::span<const int> v) const {
    s.block_n = v[0];
    s.buffers = v[1];
    s.min_workgroups = v[2];
    s.lds_bytes = lds_bytes(s);
    return s;
  }
  Support takes(const Problem& p, const Chip& chip, const Specialisation& s) const {
    const int waves = s.workgroup / chip.wave_size;
    if (Support support = keys_fill_products(s.block_n, target()); !support.yes) return support;
    // Waves that share rows meet once between two barriers of the workgroup.
    constexpr int kSharedColumns = 16;
    if (s.dim_groups > 1 && s.block_n != kSharedColumns)
      return Support::no("waves share rows: tiles have 16 columns");
    // NVIDIA: 8 lanes copy a row, and all lanes copy.
    if (chip.vendor == Vendor::nvidia && s.block_n % (s.workgroup / 8) != 0) {
      return Support::no("the workgroup's lanes copy " + std::to_string(s.workgroup / 8) +
                         " rows at once, of which tiles have whole numbers");
    }
    const int workgroups = chip.vendor == Vendor::nvidia ? s.min_workgroups : 1;
    if (Support support = lds_fits(int64_t{s.lds_bytes} * workgroups, chip); !support.yes)
      return support;
    // Sums of one side's gradients, of two where dk comes beside dv, and two tiles of scores.
    const int64_t sums = s.outputs == (kGivesDk | kGivesDv) ? s.head_dim + s.head_dim_v
                                                            : std::max(s.head_dim, s.head_dim_v);
    const int64_t each =
        int64_t{s.block_m / waves} * (sums + 2 * s.block_n) + (p.bias.present ? 16 * s.block_n : 0);
    return registers_fit(each / chip.wave_size, chip, waves, s.min_waves, s.min_workgroups);
  }
  // Each wave of those that share rows has whole operands.
  int dims(int64_t dim, int dim_groups = 1) const {
    return static_cast<int>(round_up(dim, int64_t{target().mma_k} * dim_groups));
  }
  const BackwardShapes& shapes_for(const Problem& p, const Chip& chip, int compute_units) const {
    std::size_t n = 0;
    while (n + 1 < tiles_.shapes.size() &&
           dims(std::max(p.head_dim, p.head_dim_v)) > tiles_.shapes[n].max_head_dim)
      ++n;
    const int max_head_dim = tiles_.shapes[n].max_head_dim;
    while (n + 1 < tiles_.shapes.size() && tiles_.shapes[n + 1].max_head_dim == max_head_dim &&
           !fits(tiles_.shapes[n], p, chip))
      ++n;
    if (tiles_.shapes[n].next_where_few && 2 * blocks(tiles_.shapes[n], p) <= compute_units) ++n;
    return tiles_.shapes[n];
  }
  static int64_t blocks(const BackwardShapes& shapes, const Problem& p) {
    return tiles_of(std::max(p.seqlen_q, p.seqlen_k), shapes.queries.block_m) * p.batch *
           p.num_heads;
  }
  bool fits(const BackwardShapes& shapes, const Problem& p, const Chip& chip) const {
    const int keys = shapes.split_keys ? kGivesDk : kGivesDk | kGivesDv;
    return kernel_of(p, chip, shapes.queries, kGivesDq).lds_bytes <= chip.lds_bytes &&
           kernel_of(p, chip, shapes.keys, keys).lds_bytes <= chip.lds_bytes;
  }
  bool splits_keys(const Problem& p, const Chip& chip, int compute_units) const {
    const BackwardShapes& shapes = shapes_for(p, chip, compute_units);
    return shapes.split_keys || score_registers(p) >= shapes.split_from;
  }
  const BackwardShape& rows_shape(const Problem& p, const Chip& chip, int outputs,
                                  int compute_units) const {
    const BackwardShapes& shapes = shapes_for(p, chip, compute_units);
    const bool of_queries = outputs == kGivesDq;
    const BackwardShape& usual = of_queries ? shapes.queries : shapes.keys;
    const std::optional<BackwardShape>& plain =
        of_queries ? shapes.plain_queries : shapes.plain_keys;
    if (!plain || score_registers(p) != 0 || p.softmax_scale <= 0 ||
        dims(p.head_dim) != dims(p.head_dim_v))
      return usual;
    const int64_t rows = of_queries ? p.seqlen_q : p.seqlen_k,
                  heads = of_queries ? p.num_heads : p.num_kv_heads;
    // Larger tiles must not leave half of the chip without one.
    const bool fills_chip = plain->block_m <= usual.block_m ||
                            2 * tiles_of(rows, plain->block_m) * p.batch * heads > compute_units;
    return rows > plain->block_m / 2 && fills_chip ? *plain : usual;
  }
  // Whether one tile of columns can hold all keys, so that dbias comes beside dq (chess boards):
  // the kernel for both.
  bool holds_all_keys(const Problem& p, const Chip& chip, Specialisation& s) const {
    constexpr int kMostKeys = 64;
    if (!p.dbias.present || p.seqlen_k < 1 || p.seqlen_k > kMostKeys ||
        std::max(s.head_dim, s.head_dim_v) > tiles_.max_bias_dim)
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
    return kernels::SharedRowsLayout::of({.transposed_depth = target().transposed_depth(),
                                          .reads_transposed = target().reads_transposed,
                                          .head_dim = s.head_dim,
                                          .head_dim_v = s.head_dim_v,
                                          .block_m = s.block_m,
                                          .block_n = s.block_n,
                                          .buffers = s.buffers,
                                          .rows_in_lds = s.queries_in_lds != 0,
                                          .first_values = (s.outputs & (kGivesDq | kGivesDk)) != 0,
                                          .second_values = (s.outputs & kGivesDv) != 0,
                                          .dim_groups = s.dim_groups,
                                          .direct_rows = s.direct_rows != 0})
        .total;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, int outputs,
                                int compute_units) const {
    const BackwardShapes& shapes = shapes_for(p, chip, compute_units);
    BackwardShape shape = rows_shape(p, chip, outputs, compute_units);
    const bool by_score = p.bias.present || has_masks(p) || has_score_mod(p);
    const bool narrow = by_score && std::max(p.head_dim, p.head_dim_v) > shapes.narrow_above;
    if (narrow && outputs != kGivesDq) shape.block_n = target().value_depth;
    if (outputs == kGivesDq && score_registers(p) >= shapes.late_from) shape.late = true;
    // No wave without rows: chess boards have 64.
    const int64_t rows = outputs == kGivesDq ? p.seqlen_q : p.seqlen_k;
    while (rows <= shape.block_m / 2 && shape.block_m * shape.dim_groups > 16 * shape.waves)
      shape.block_m /= 2;
    while (rows <= shape.block_m / 2 && shape.waves > 4) {
      shape.block_m /= 2;
      shape.waves /= 2;
    }
    if (splits_keys(p, chip, compute_units) && outputs == (kGivesDk | kGivesDv)) outputs = kGivesDk;
    Specialisation s = kernel_of(p, chip, shape, outputs);
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    return s;
  }
  Specialisation kernel_of(const Problem& p, const Chip& chip, const BackwardShape& shape,
                           int outputs) const {
    Specialisation s;
    s.entry = "backward/backward.h";
    s.target = &target();
    s.head_dim = dims(p.head_dim, shape.dim_groups);
    s.head_dim_v = dims(p.head_dim_v, shape.dim_groups);
    set_shape(shape, chip, s);
    s.outputs = outputs;
    s.lds_bytes = lds_bytes(s);
    return s;
  }
  const BackwardTiles& tiles_;
};

}  // namespace

const Family* make_backward(const Target& target) {
  return target.backward ? new Backward(target) : nullptr;
}

}  // namespace fulmen::gpu
