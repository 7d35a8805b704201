// kernels/forward/prefill_tma.h: tiles of Hopper's warpgroup products, brought by the tensor memory
// accelerator (TMA).
#include <algorithm>
#include <string>

#include "gpu/launch/decode.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/prefill_tma_shapes.h"
#include "gpu/launch/tail_wave.h"
#include "gpu/launch/work_tiles.h"
#include "kernels/forward/prefill_tma_layout.h"
#include "kernels/tile/nvidia/register_shares.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V

// slots: workgroups that run at once.
TileScheduler scheduler_for(const Problem& p, const PrefillTmaRow& row, int64_t slots) {
  constexpr int kNeverInPairs = 3;  // warpgroups (docs/lab/nvidia_forward.md)
  if (p.variable_lengths()) return TileScheduler::dynamic_persistent;
  const int64_t tiles = tiles_of_queries(p, row.shape.warpgroups);
  if (row.scheduler == TileScheduler::dynamic_persistent)
    return tiles > slots ? TileScheduler::dynamic_persistent : TileScheduler::single_tile;
  if (!has_band(p) || row.scheduler == TileScheduler::single_tile) return row.scheduler;
  // Static and with a band: pairs of tiles of equal work. The tail wave may have few pairs.
  return row.shape.warpgroups != kNeverInPairs && tiles / 2 >= 2 * slots
             ? TileScheduler::static_persistent
             : TileScheduler::single_tile;
}

Specialisation specialisation(const Problem& p, const Target& target, const PrefillTmaShape& shape,
                              TileScheduler scheduler) {
  const int64_t panel = target.panel_columns;
  Specialisation s;
  s.entry = "forward/prefill_tma.h";
  s.target = &target;
  // Products are of 16 dims, two of them, each of whole panels, make up more than 192 of v.
  s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
  s.head_dim_v = static_cast<int>(
      round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * panel : kProductDims));
  s.block_m = kWarpgroupRows * shape.warpgroups;
  s.block_n = shape.block_n;
  s.workgroup = kWarpgroupLanes * (shape.warpgroups + 1);  // one more, of loaders
  s.buffers = shape.buffers;
  s.queries_in_lds = true;
  s.min_workgroups = shape.min_workgroups;
  s.ping_pong = shape.ping_pong && shape.warpgroups > 1;
  s.persistent = static_cast<int>(scheduler);
  s.tensor_maps = true;
  s.shared_heads = shared_heads(p, s.block_m);
  s.lds_bytes = kernels::TmaPrefillLayout::of(static_cast<int>(round_up(s.head_dim, panel)),
                                              static_cast<int>(round_up(s.head_dim_v, panel)),
                                              s.block_m, s.block_n, s.buffers, p.variable_lengths())
                    .total;
  specialise_for(p, s);
  read_mask_as_bits(p, s);
  return s;
}
struct Choice {
  PrefillTmaShape shape;
  TileScheduler scheduler;
  TailWave last;
};
int64_t slots_of(const PrefillTmaShape& shape, int compute_units) {
  return int64_t{std::max(1, compute_units)} * shape.min_workgroups;
}
Choice choose(const Problem& p, const Target& target, int compute_units) {
  const PrefillTmaRow& row = row_for(p, target, compute_units);
  const int64_t slots = slots_of(row.shape, compute_units);
  const TailWave last = p.variable_lengths() ? TailWave{} : tail_wave(p, row.shape, slots);
  return {row.shape, scheduler_for(p, row, slots), last};
}

// The static scheduler's stride from a workgroup's tile (or pair of tiles) to its next one, as the
// mixed-radix index (tile, head, batch) that QueryTiles counts in.
void make_persistent(const Problem& p, LaunchPlan& plan, int64_t slots) {
  KernelLaunch& launch = plan.launches.front();
  kernels::ForwardArguments& a = plan.arguments;
  const bool band = launch.specialisation.band, pairs_heads = p.num_heads % 2 == 0;
  const int64_t tiles = band && !pairs_heads ? tiles_of(a.row_tiles, 2) : a.row_tiles;
  const int64_t heads = band && pairs_heads ? p.num_heads / 2 : p.num_heads;
  launch.workgroups = std::min(tiles * heads * p.batch, slots);
  if (launch.workgroups == 0) return;
  a.step_tile = static_cast<int>(launch.workgroups % tiles);
  a.step_head = static_cast<int>(launch.workgroups / tiles % heads);
  a.step_batch = static_cast<int>(launch.workgroups / tiles / heads);
}

// Cuts the tiles of the tail wave into splits of the keys, and adds the launch that merges them.
void split_tail_wave(const Problem& p, const Chip& chip, const TailWave& last, int64_t slots,
                     LaunchPlan& plan) {
  KernelLaunch& launch = plan.launches.front();
  kernels::ForwardArguments& a = plan.arguments;
  const int64_t whole =
      tiles_of_queries(p, launch.specialisation.block_m / kWarpgroupRows) - last.tiles;
  const int64_t all = whole + last.tiles * last.splits;
  launch.specialisation.splits = 1;
  launch.workgroups = launch.specialisation.persistent != 0 ? std::min(all, slots) : all;
  a.whole_tiles = static_cast<int>(whole);
  a.num_splits = plan.num_splits = last.splits;
  a.split_keys = last.split_keys;
  a.first_split_row =
      whole / a.row_tiles * p.seqlen_q + whole % a.row_tiles * launch.specialisation.block_m;
  add_combine(p, chip, Specialisation(launch.specialisation), plan);
}

// Heads of an L2 section: with a band, tiles of heads whose keys and values fit in the L2 are
// interleaved.
int l2_section_heads(const Problem& p) {
  const int64_t head_bytes = p.seqlen_k * key_bytes(p) / p.group_size();
  const int64_t heads = std::max<int64_t>(1, p.batch * p.num_heads);
  return static_cast<int>(
      std::clamp(kL2Bytes / std::max<int64_t>(1, head_bytes), int64_t{1}, heads));
}

// Adds the launch that clears the dynamic scheduler's tile counter, before the one that counts.
void add_tile_counter(LaunchPlan& plan) {
  constexpr int kLanes = 32;
  constexpr int64_t kFloats = 16;
  Specialisation clear =
      helper_kernel(plan.launches.front().specialisation, "forward/clear_tile_counter.h", kLanes);
  clear.splits = 0;
  plan.tile_counter_floats = kFloats;
  plan.launches.front().programmatic_launch = true;
  plan.launches.insert(plan.launches.begin(), {clear, 1});
}

LaunchPlan plan_of(const Problem& p, const Target& target, const Chip& chip, const Choice& choice,
                   int compute_units) {
  const int64_t slots = slots_of(choice.shape, compute_units);
  const TailWave& last = choice.last;
  const Specialisation s = specialisation(p, target, choice.shape, choice.scheduler);
  LaunchPlan plan = query_tile_plan(p, s);
  plan.arguments.section_heads = l2_section_heads(p);
  if (p.variable_lengths()) {
    KernelLaunch& launch = plan.launches.front();
    launch.workgroups = std::min(most_query_tiles(p, s.block_m) * p.num_heads, slots);
    plan.arguments.step_tile = static_cast<int>(launch.workgroups);
    add_work_tiles(p, plan);
  } else if (choice.scheduler == TileScheduler::static_persistent && last.splits == 1) {
    make_persistent(p, plan, slots);
  } else {
    if (last.splits > 1) split_tail_wave(p, chip, last, slots, plan);
    if (choice.scheduler != TileScheduler::single_tile)
      plan.launches.front().workgroups = std::min(plan.launches.front().workgroups, slots);
    plan.arguments.step_tile = static_cast<int>(plan.launches.front().workgroups);
    if (choice.scheduler == TileScheduler::dynamic_persistent) add_tile_counter(plan);
  }
  add_mask_bits(p, plan);
  plan.unaligned = std::make_shared<LaunchPlan>(prefill_wgmma_plan(p, *s.target));
  return plan;
}

class PrefillTma final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_tma"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = tma_reads(p); !support.yes) return support;
    if (p.variable_lengths() && has_masks(p))
      return Support::no(
          "it takes a keep_mask, mask_mod or block mask where sequences have one length");
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const PrefillTmaShape& shape = choose(p, target(), kUsualComputeUnits).shape;
    if (Support support = takes_pages(p, shape); !support.yes) return support;
    const Specialisation s = specialisation(p, target(), shape, TileScheduler::single_tile);
    if (Support support = takes_mask_bits(s); !support.yes) return support;
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    constexpr PrefillTmaShape kSmallest{
        .warpgroups = 1, .block_n = 64, .buffers = 2, .min_workgroups = 2};
    return grid_fits(query_tile_workgroups(
        p, specialisation(p, target(), kSmallest, TileScheduler::single_tile)));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, target(), chip, choose(p, target(), compute_units), compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Choice usual = choose(p, target(), compute_units);
    const PrefillTmaShape& shape = usual.shape;
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {
        {"block_m",
         kWarpgroupRows * shape.warpgroups,
         {kWarpgroupRows, 2 * kWarpgroupRows, 3 * kWarpgroupRows, 4 * kWarpgroupRows}},
        {"block_n", shape.block_n, {32, 48, 64, 80, 96, 112, 128, 176}},
        {"buffers", shape.buffers, {2, 3, 4, 6}},
        {"min_workgroups", shape.min_workgroups, {1, 2, 3}},
        {"ping_pong", shape.ping_pong ? 1 : 0, {0, 1}},
        {"persistent", static_cast<int>(usual.scheduler), {0, 1, 2}},
        {"splits_last", usual.last.splits > 1 ? 1 : 0, {0, 1}}};
    space.takes = [this, p, chip, compute_units](std::span<const int> v) -> Support {
      if (p.variable_lengths() &&
          (v[5] != static_cast<int>(TileScheduler::dynamic_persistent) || v[6] != 0))
        return Support::no("sequences' tiles are taken by the tile counter alone");
      if (Support support = takes_pages(p, shape_of_values(v)); !support.yes) return support;
      if (v[6] != 0 &&
          tail_wave(p, shape_of_values(v), slots_of(shape_of_values(v), compute_units)).splits == 1)
        return Support::no("the tail wave of tiles is not worth splitting");
      const Specialisation s =
          specialisation(p, target(), shape_of_values(v), static_cast<TileScheduler>(v[5]));
      if (Support support = takes_mask(p, shape_of_values(v)); !support.yes) return support;
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
        return support;
      const int warpgroups = s.block_m / kWarpgroupRows;
      if (warpgroups == 1 && s.min_workgroups == 1)
        return Support::no("one warpgroup alone has no use for all registers");
      if (warpgroups == 1 && v[4] != 0)
        return Support::no("one warpgroup has none to take turns with");
      constexpr int kRest = 24;
      const int had =
          kernels::RegisterShares::of(warpgroups, s.min_workgroups, kernels::kTmaRegisters)
              .consumer;
      const int needed = s.head_dim_v / 2 + s.block_n / 2 + s.block_n / 4 + kRest;
      if (needed <= had) return {};
      return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " +
                         std::to_string(had));
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    const PrefillTmaShape shape = shape_of_values(v);
    const TailWave last =
        v[6] != 0 ? tail_wave(p, shape, slots_of(shape, compute_units)) : TailWave{};
    return plan_of(p, target(), chip, {shape, static_cast<TileScheduler>(v[5]), last},
                   compute_units);
  }

 private:
  static constexpr int kUsualComputeUnits = 1;  // the tiles of many: the largest
  static PrefillTmaShape shape_of_values(std::span<const int> v) {
    return {v[0] / kWarpgroupRows, v[1], v[2], v[3], v[4] != 0};
  }
};

}  // namespace

const Family* make_prefill_tma(const Target& target) {
  return target.prefill_tma ? new PrefillTma(target) : nullptr;
}

}  // namespace fulmen::gpu
