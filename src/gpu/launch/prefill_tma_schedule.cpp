#include "gpu/launch/prefill_tma_schedule.h"

#include "gpu/launch/decode.h"
#include "gpu/launch/work_tiles.h"

namespace fulmen::gpu {
namespace {

// Returns true if a tenth of all waves' places are empty at most. One wave of pairs gains where
// products take the time; a softcap loses 3 to 8 % by it.
bool pairs_fill_waves(const Problem& p, int64_t pairs, int64_t slots) {
  const bool modified = p.softcap > 0 || changes_scores(p);
  return 10 * pairs >= 9 * slots * tiles_of(pairs, slots) && !(pairs <= slots && modified);
}

// slots: workgroups that run at once.
TileScheduler scheduler_for(const Problem& p, const PrefillTmaRow& row, int64_t slots) {
  constexpr int kNeverInPairs = 3;  // warpgroups (docs/lab/nvidia_forward.md)
  if (p.variable_lengths()) return TileScheduler::dynamic_persistent;
  const int64_t tiles = tiles_of_queries(p, row.shape.warpgroups);
  // Where queries have masks of their own, tiles have as much work as these say.
  if (row.scheduler == TileScheduler::dynamic_persistent || masks_differ_by_query(p))
    return tiles > slots ? TileScheduler::dynamic_persistent : TileScheduler::single_tile;
  if (!has_band(p) || row.scheduler == TileScheduler::single_tile) return row.scheduler;
  // Static and with a band: pairs of tiles of equal work. The tail wave may have few pairs.
  const int64_t pairs = tiles / 2;
  return row.shape.warpgroups != kNeverInPairs &&
                 (pairs >= 2 * slots || pairs_fill_waves(p, pairs, slots))
             ? TileScheduler::static_persistent
             : TileScheduler::single_tile;
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
  // Nothing depends on the tiles.
  clear.dtype = clear.kv_dtype = clear.v_dtype = static_cast<int>(DType::fp16);
  clear.head_dim = clear.head_dim_v = clear.block_m = clear.block_n = clear.whole_rows = 0;
  clear.sinks = 0;
  plan.tile_counter_floats = kFloats;
  plan.launches.front().programmatic_launch = true;
  plan.launches.insert(plan.launches.begin(), {clear, 1});
}

}  // namespace

PrefillTmaChoice choose_tiles(const Problem& p, const PrefillTmaTiles& tiles, int compute_units) {
  const PrefillTmaRow& row = row_for(p, tiles, compute_units);
  const int64_t slots = slots_of(row.shape, compute_units);
  const TailWave last = p.variable_lengths() ? TailWave{} : tail_wave(p, row.shape, slots);
  return {row.shape, scheduler_for(p, row, slots), last};
}

void schedule_tiles(const Problem& p, const Chip& chip, const PrefillTmaChoice& choice,
                    int compute_units, LaunchPlan& plan) {
  const int64_t slots = slots_of(choice.shape, compute_units);
  const TailWave& last = choice.last;
  plan.arguments.section_heads = l2_section_heads(p);
  if (p.variable_lengths()) {
    KernelLaunch& launch = plan.launches.front();
    launch.workgroups =
        std::min(most_query_tiles(p, launch.specialisation.block_m) * p.num_heads, slots);
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
}

}  // namespace fulmen::gpu
