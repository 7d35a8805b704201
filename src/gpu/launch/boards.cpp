// kernels/forward/boards.h: chess boards, 64 queries and 64 keys.
#include <algorithm>

#include "gpu/launch/family.h"
#include "kernels/forward/boards_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kBoardRows = 64;
constexpr float kLeastScale = 0x1p-40F;                // a bias divided by it is still finite
constexpr int64_t kMostBiasStride = int64_t{1} << 21;  // a tile's distances are 32 bits

class Boards final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "boards"; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.seqlen_q != kBoardRows || p.seqlen_k != kBoardRows || p.variable_lengths()) {
      return Support::no("seqlen_q is " + std::to_string(p.seqlen_q) + " and seqlen_k " +
                         std::to_string(p.seqlen_k) + ", boards have 64 of each");
    }
    if (shape_for(p) == nullptr) {
      return Support::no("head_dim is " + std::to_string(p.head_dim) + " and head_dim_v " +
                         std::to_string(p.head_dim_v) + ": 32, 64, 96 or 128 for both is served");
    }
    if (!strides_are_whole(p))
      return Support::no("rows of q, k, v or out are not at multiples of 16 bytes");
    if (has_band(p) || p.keep_mask.present || p.alibi_slopes.present || p.softcap > 0 ||
        p.dropout > 0) {
      return Support::no("masks, ALiBi, softcap and dropout are left to the other kernels");
    }
    if (!(p.softmax_scale >= kLeastScale))
      return Support::no("softmax_scale is below 2^-40: the bias is divided by it");
    if (p.bias.present &&
        (size_of(p.bias.dtype) != 2 || !bias_is_whole(p) || p.bias.strides[2] > kMostBiasStride)) {
      return Support::no("the bias has not 16 bits, or its rows are not at multiples of 16 bytes");
    }
    if (Support support = lds_fits(
            specialisation(p, chip, {shape_for(p)->workgroups, shape_for(p)->runs}).lds_bytes,
            chip);
        !support.yes)
      return support;
    return grid_fits(p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, compute_units, usual(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Cut own = usual(p, compute_units);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"min_workgroups", own.workgroups, {1, 2, 3, 4, 5, 6}},
                        {"runs", own.in_runs ? 1 : 0, {0, 1}}};
    space.takes = [this, p, chip, own](std::span<const int> v) -> Support {
      if (v[0] == own.workgroups && v[1] == (own.in_runs ? 1 : 0)) return {};
      const Specialisation s = specialisation(p, chip, {v[0], v[1] != 0});
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      return registers_fit(int64_t{16} * (kBoardRows + s.head_dim) / chip.wave_size, chip,
                           kBoardRows / 16, 1, v[0]);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, chip, compute_units, {v[0], v[1] != 0});
  }

 private:
  // How many workgroups a multiprocessor has registers for, and whether each goes over a run of
  // boards.
  struct Cut {
    int workgroups;
    bool in_runs;
  };
  static int64_t at_once(int compute_units, int workgroups) {
    return int64_t{std::max(1, compute_units)} * workgroups;
  }
  Cut usual(const Problem& p, int compute_units) const {
    const BoardShape& shape = *shape_for(p);
    return {shape.workgroups,
            shape.runs && p.batch * p.num_heads > at_once(compute_units, shape.workgroups)};
  }
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units, const Cut& cut) const {
    const int64_t most = at_once(compute_units, cut.workgroups);
    const int64_t runs = std::clamp<int64_t>(most / std::max<int64_t>(1, p.num_heads), 1,
                                             std::max<int64_t>(1, p.batch));
    LaunchPlan plan;
    plan.arguments = arguments_of(p);
    plan.arguments.runs = static_cast<int>(cut.in_runs ? runs : p.batch);
    // More workgroups keep the memory busy without that, and may lose by it.
    plan.arguments.fetches_early =
        static_cast<int>(!cut.in_runs && 2 * p.batch * p.num_heads <= most);
    plan.launches.push_back(
        {specialisation(p, chip, cut), plan.arguments.runs * p.num_heads, !cut.in_runs});
    return plan;
  }
  const BoardShape* shape_for(const Problem& p) const {
    for (const BoardShape& shape : target().boards->shapes) {
      if (shape.head_dim == p.head_dim && p.head_dim_v == p.head_dim) return &shape;
    }
    return nullptr;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip, const Cut& cut) const {
    const BoardShape& shape = *shape_for(p);
    Specialisation s;
    s.entry = "forward/boards.h";
    s.target = &target();
    s.head_dim = s.head_dim_v = shape.head_dim;
    s.block_m = s.block_n = kBoardRows;
    s.workgroup = kBoardRows / 16 * chip.wave_size;
    s.buffers = cut.in_runs ? 2 : 1;
    s.min_workgroups = cut.workgroups;
    specialise_for(p, s);
    s.whole_tiles = true;
    s.batch_bias = p.bias.present && p.bias.strides[0] != 0;
    s.lds_bytes =
        kernels::BoardsLayout::of({.head_dim = s.head_dim,
                                   .block = kBoardRows,
                                   .buffers = s.buffers,
                                   .bias = p.bias.present && (s.batch_bias || !cut.in_runs)})
            .total;
    return s;
  }
};

}  // namespace

const Family* make_boards(const Target& target) {
  return target.boards ? new Boards(target) : nullptr;
}

}  // namespace fulmen::gpu
