#include <algorithm>

#include "gpu/launch/fp32.h"
#include "gpu/targets/portable.h"
#include "runtime/fork_safe.h"
#include "runtime/precision.h"

namespace fulmen::gpu {

namespace {

// What a family's kernel is written in terms of. A target that extends another has that one's
// kernels already.
bool any_target(const Target& target) { return target.extends == nullptr; }
bool nvidia(const Target& target) {
  return target.vendor == Vendor::nvidia && target.extends == nullptr;
}
bool warpgroup_products(const Target& target) { return target.panel_columns > 0; }
bool amd_or_warpgroup_products(const Target& target) {
  return target.vendor == Vendor::amd || warpgroup_products(target);
}

struct Row {
  std::string_view name;
  Pass pass;
  bool (*written_for)(const Target&);
  const Family* (*make)(const Target&);
};
constexpr Row kRows[]{
    {"decode", Pass::forward, any_target, make_decode},
    {"short", Pass::forward, any_target, make_short},
    {"prefill", Pass::forward, any_target, make_prefill},
    {"prefill_fp32", Pass::forward, any_target, make_prefill_fp32},
    {"short_backward", Pass::backward, any_target, make_short_backward},
    {"backward", Pass::backward, any_target, make_backward},
    {"backward_fp32", Pass::backward, any_target, make_backward_fp32},
    {"decode_tma", Pass::forward, warpgroup_products, make_decode_tma},
    {"decode_latent", Pass::forward, amd_or_warpgroup_products, make_decode_latent},
    {"prefill_tma", Pass::forward, warpgroup_products, make_prefill_tma},
    {"prefill_fp8", Pass::forward, warpgroup_products, make_prefill_fp8},
    {"prefill_e4m3", Pass::forward, any_target, make_prefill_e4m3},
    {"prefill_int8", Pass::forward, any_target, make_prefill_int8},
    {"prefill_wgmma", Pass::forward, warpgroup_products, make_prefill_wgmma},
    {"boards", Pass::forward, nvidia, make_boards},
    {"backward_atomic", Pass::backward, nvidia, make_backward_atomic},
    {"backward_wgmma_atomic", Pass::backward, warpgroup_products, make_backward_wgmma_atomic},
    {"backward_tma", Pass::backward, warpgroup_products, make_backward_tma},
    {"backward_wgmma", Pass::backward, warpgroup_products, make_backward_wgmma},
};

// A family that its target has no tiles for.
class Absent final : public Family {
 public:
  Absent(const Row& row, const Target& target) : Family(target), row_(row) {}
  std::string_view name() const noexcept override { return row_.name; }
  Pass pass() const noexcept override { return row_.pass; }
  // Whatever is asked, the tiles are what is missing.
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  bool has_products(Precision /*precision*/) const noexcept override { return true; }
  Support supports(const Problem& /*problem*/, const Chip& /*chip*/) const override {
    return Support::no("it has no tile shapes for " + std::string(target().name));
  }
  LaunchPlan plan(const Problem& /*problem*/, const Chip& /*chip*/,
                  int /*compute_units*/) const override {
    return {};
  }

 private:
  const Row& row_;
};

}  // namespace

std::vector<const Family*> make_families(std::span<const Target* const> targets) {
  std::vector<const Family*> list;
  for (const Row& row : kRows) {
    for (const Target* target : targets) {
      if (!row.written_for(*target)) continue;
      const Family* family = row.make(*target);
      list.push_back(family != nullptr ? family : new Absent(row, *target));
    }
  }
  list.push_back(make_decode_portable(kPortable));
  list.push_back(make_prefill_portable(kPortable));
  list.push_back(make_backward_portable(kPortable));
  return list;
}

const std::vector<const Family*>& families() {
  constinit static MadeOnce<const std::vector<const Family*>> made;
  return made.get([] { return make_families(targets()); });
}

Support Family::serves(const Problem& p, const Chip& chip) const {
  if (Support taken = takes_precision(p, has_products(p.precision)); !taken.yes) return taken;
  const HeadDims most = most_head_dims();
  if (p.head_dim <= most.qk && p.head_dim_v <= most.v) return supports(p, chip);
  const std::string dims = std::to_string(p.head_dim),
                    most_v = most.v == most.qk ? "" : ", of v up to " + std::to_string(most.v);
  return Support::no("head_dim is " + dims +
                     (p.head_dim_v == p.head_dim ? "" : ", v's " + std::to_string(p.head_dim_v)) +
                     ": " + std::string(why_no_wider()) + std::to_string(most.qk) + most_v);
}

Support takes_matrix_instructions(const Problem& p) {
  if (p.dtype != DType::fp32) return {};
  return Support::no("it multiplies fp16 and bf16");
}
int64_t query_tile_workgroups(const Problem& p, const Specialisation& s) {
  return tiles_of(p.seqlen_q, s.block_m) * p.batch * p.num_heads;
}
LaunchPlan query_tile_plan(const Problem& p, const Specialisation& s) {
  LaunchPlan plan;
  plan.launches.push_back({s, query_tile_workgroups(p, s)});
  plan.arguments = arguments_of(p);
  plan.arguments.row_tiles = static_cast<int>(tiles_of(p.seqlen_q, s.block_m));
  return plan;
}

Support grid_fits(int64_t workgroups) {
  constexpr int64_t kMost = 2147483647;
  if (workgroups <= kMost) return {};
  return Support::no("it needs " + std::to_string(workgroups) + " workgroups, a launch takes " +
                     std::to_string(kMost));
}

Support lds_fits(int64_t bytes, const Chip& chip) {
  if (bytes <= chip.lds_bytes) return {};
  return Support::no(std::to_string(bytes) + " bytes of LDS are needed, " + std::string(chip.arch) +
                     " has " + std::to_string(chip.lds_bytes));
}

Support keys_fill_products(int block_n, const Target& target) {
  if (block_n % target.value_depth == 0) return {};
  return Support::no("tiles of " + std::to_string(block_n) + " keys: a product takes " +
                     std::to_string(target.value_depth));
}

Support registers_fit(int64_t accumulators, const Chip& chip, int waves, int min_waves,
                      int min_workgroups) {
  const int64_t lanes =
      int64_t{chip.wave_size} * (chip.vendor == Vendor::amd ? min_waves : waves * min_workgroups);
  const int64_t registers = std::min<int64_t>(chip.vector_registers, chip.register_file / lanes);
  // What is left are addresses and operands: the shapes that are known to be good take no less.
  const int64_t most = registers * 7 / 8;
  if (accumulators <= most) return {};
  return Support::no(std::to_string(accumulators) +
                     " registers of a lane are needed for scores and outputs, there are " +
                     std::to_string(most) + " for them");
}

}  // namespace fulmen::gpu
