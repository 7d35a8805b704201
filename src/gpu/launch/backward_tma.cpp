// kernels/backward/backward_tma.h and backward_tma_wide.h: gradients by one kernel of warpgroup
// products, whose tiles the tensor memory accelerator (TMA) brings; dq is added up in a fixed
// order, where the problem asks for one.
#include <algorithm>
#include <limits>
#include <string>

#include "algorithm/mask_tiles.h"
#include "gpu/launch/backward.h"
#include "gpu/launch/work_tiles.h"
#include "kernels/backward/backward_tma_layout.h"
#include "kernels/backward/backward_tma_wide_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kTileCounters = 1;               // of the dynamic tile scheduler
constexpr int64_t kProductDims = 16;               // of a warpgroup product
constexpr int kFromLastTile = 1, kTileByTile = 2;  // Configuration::query_order
// Two warpgroups that multiply, and one that asks for tiles.
constexpr int kBackwardTmaLanes = 3 * kWarpgroupLanes;
// Of blocks: problems of up to so many rounds have all heads' blocks in two parts, others those of
// the last rounds.
constexpr int64_t kFewRounds = 4, kLastRounds = 2;

class BackwardTma final : public Family {
 public:
  explicit BackwardTma(const Target& target) : Family(target), tiles_(*target.backward_tma) {}
  std::string_view name() const noexcept override { return "backward_tma"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (!p.dq.present || !(p.dk.present || p.dv.present))
      return Support::no("it gives dq beside dk or dv");
    if (Support support = tma_reads(p); !support.yes) return support;
    const int64_t rows = std::max(p.q_shape()[1], p.k_shape()[1]);
    if (rows > std::numeric_limits<int>::max() - tiles_.block_m)
      return Support::no(std::to_string(rows) + " rows, a tile's place is a number of 32 bits");
    const Specialisation s = specialisation(p);
    if (Support support = takes_mask_bits(s); !support.yes) return support;
    if (goes_over_lists(s) && !lists_fit(p))
      return Support::no("so many rows, a mask's lists have tiles of 16 bits and places of 32");
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(tiles_of(std::max(p.seqlen_q, p.seqlen_k), 16) * p.batch * p.num_heads);
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, specialisation(p), chip, compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int /*compute_units*/) const override {
    const Specialisation usual = specialisation(p);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    // LDS is full, and the warpgroups meet in each tile: nothing is left to choose.
    const bool wide = is_pair(usual);
    space.parameters = {
        {"buffers", usual.buffers, wide ? std::vector<int>{2} : std::vector<int>{2, 3, 4}},
        {"ping_pong", usual.ping_pong ? 1 : 0,
         wide ? std::vector<int>{0} : std::vector<int>{0, 1}}};
    space.takes = [this, p, chip](std::span<const int> v) -> Support {
      const Specialisation s = tuned(p, v);
      constexpr int kLeast = 3;  // one tile is held, one is computed, one comes
      if (!is_pair(s) && layout_of(s).pipelined && s.buffers < kLeast)
        return Support::no(
            "heads of up to 64 dims have a tile more in the pipeline: 3 buffers or more are taken");
      return lds_fits(s.lds_bytes, chip);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    return plan_of(p, tuned(p, v), chip, compute_units);
  }

 private:
  LaunchPlan plan_of(const Problem& p, const Specialisation& s, const Chip& chip,
                     int compute_units) const {
    BackwardPlan plan(p, compute_units);
    plan.add_row_statistics(s);
    // In a pair, each workgroup counts its half of the dims.
    const int parts = is_pair(s) ? s.dim_groups : layout_of(s).sum_parts;
    const int64_t blocks = most_key_tiles(p, tiles_.block_m) * p.num_kv_heads;
    plan.add_with_query_sums(s, std::min<int64_t>(blocks, slots(s, compute_units)) * s.dim_groups);
    plan.add_block_table(static_cast<int>(tiles_.block_m));
    plan.add_counters(most_query_tiles(p, s.block_n) * p.num_heads * parts + kTileCounters);
    plan.add_bias(target(), chip);
    plan.add_sinks(s);
    plan.add_tensor_gradients(s, chip);
    LaunchPlan whole = plan.take();
    if (p.variable_lengths()) {
      order_sequences(p, s, compute_units, whole);
    } else {
      order_blocks(p, s, compute_units, whole);
    }
    whole.backward.adds_in_order = p.deterministic ? 1 : 0;
    whole.backward.adds_to_zeros = adds_to_zeros(p, s) ? 1 : 0;
    whole.unaligned =
        std::make_shared<LaunchPlan>(backward_wgmma_plan(p, target(), chip, compute_units));
    return whole;
  }
  Specialisation specialisation(const Problem& p) const {
    Specialisation s;
    s.target = &target();
    // Wide heads' blocks are shared by a pair of workgroups, of which each has half of the dims, in
    // whole panels.
    const int64_t panel = target().panel_columns, largest = std::max(p.head_dim, p.head_dim_v);
    const bool wide = largest > tiles_.own_dims;
    const auto dims = [&](int64_t dim) {
      if (wide) return static_cast<int>(round_up(dim, 2 * panel));
      return static_cast<int>(dim <= panel ? panel : round_up(dim, kProductDims));
    };
    s.entry = wide ? "backward/backward_tma_wide.h" : "backward/backward_tma.h";
    s.head_dim = dims(p.head_dim);
    s.head_dim_v = dims(p.head_dim_v);
    s.dim_groups = wide ? 2 : 1;
    s.block_m = tiles_.block_m / s.dim_groups;
    s.block_n = tiles_.block_n;
    s.workgroup = kBackwardTmaLanes;
    s.outputs = outputs_of(p);
    s.tensor_maps = 1;
    s.persistent = 1;
    s.ping_pong = tiles_.ping_pong && !wide;
    set_buffers(s, largest <= panel ? tiles_.narrow_buffers : tiles_.buffers);
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    store_bias(p, s);
    // Under a causal mask, and where heads share keys (docs/lab/nvidia_backward.md). Blocks with
    // lists of other lengths would wait for each other, head by head. Blocks of narrow heads go up
    // from the diagonal: they begin with different tiles, and none waits for another one's dq.
    if (!wide && (goes_over_lists(s) || has_unequal_blocks(p))) {
      const bool goes_up = goes_over_lists(s) || layout_of(s).pipelined;
      s.query_order = p.group_size() > 1 ? kTileByTile : goes_up ? 0 : kFromLastTile;
    }
    return s;
  }
  // Order of the dynamic tile scheduler, whose work tiles are blocks of keys. Heads are taken
  // whole, so many of them interleaved that their blocks fill the chip: blocks of one head follow
  // each other in time, as they add to dq one after the other. Under a causal mask a head's blocks
  // begin with different queries; wide heads are not interleaved there: that was measured to be
  // slower. The blocks of the last keys then have the least work: those of the last heads, or of
  // all where heads are few, are scheduled last, which shortens the tail wave. Where dq has an
  // order, they would wait for their own heads' first blocks: other heads that fill the chip are
  // scheduled between.
  void order_blocks(const Problem& p, const Specialisation& s, int compute_units,
                    LaunchPlan& plan) const {
    const int64_t heads = std::max<int64_t>(1, p.batch * p.num_kv_heads),
                  units = slots(s, compute_units);
    const int64_t blocks = std::max<int64_t>(1, tiles_of(p.seqlen_k, tiles_.block_m));
    const int64_t fill = std::min(heads, tiles_of(units, blocks));
    const bool unequal = has_unequal_blocks(p) && blocks > 1 && heads * blocks > units;
    const int64_t some = std::min(heads, heads * blocks <= kFewRounds * units
                                             ? heads
                                             : tiles_of(kLastRounds * units, blocks));
    const int64_t last = unequal ? some : fill;
    if (goes_over_lists(s)) {  // all heads whole
      plan.arguments.section_heads = static_cast<int>(fill);
      return;
    }
    plan.arguments.section_heads = static_cast<int>(unequal && is_pair(s) ? 1 : fill);
    plan.backward.last_heads = static_cast<int>(last);
    plan.backward.first_blocks = static_cast<int>(unequal ? blocks / 2 : blocks);
    plan.backward.middle_heads =
        static_cast<int>(unequal && p.deterministic ? std::min(fill, heads - last) : 0);
  }
  // The same where lengths differ, by make_block_table.h: the longest sequences are taken first.
  void order_sequences(const Problem& p, const Specialisation& s, int compute_units,
                       LaunchPlan& plan) const {
    const int64_t units = slots(s, compute_units);
    const int64_t blocks = most_key_tiles(p, tiles_.block_m) * p.num_kv_heads;
    const bool unequal = has_unequal_blocks(p);
    plan.arguments.section_heads =
        unequal && is_pair(s) ? 1 : static_cast<int>(std::max<int64_t>(1, p.num_kv_heads));
    plan.backward.block_slots = static_cast<int>(units);
    if (unequal) {
      plan.backward.last_blocks =
          static_cast<int>(blocks <= kFewRounds * units ? blocks : kLastRounds * units);
    }
  }
  // Whether blocks add to zeros, which take some time to write. Else, without an order, they wait
  // for the one that stores each tile of dq first: all of a head that run at once, where these go
  // over the same tiles at the same time, as without a mask and where heads share keys. Measured:
  // wide tiles of dq lose more by the zeros, and few blocks do (docs/lab/nvidia_backward.md).
  bool adds_to_zeros(const Problem& p, const Specialisation& s) const {
    constexpr int64_t kSomeBlocks = 8, kManyBlocks = 16;
    if (p.deterministic || is_pair(s) || p.variable_lengths() || goes_over_lists(s)) return false;
    const int64_t blocks = tiles_of(p.seqlen_k, tiles_.block_m);
    if (s.query_order == kTileByTile) return blocks >= kManyBlocks;
    const bool has_band = p.window_left >= 0 || p.window_right >= 0;
    return layout_of(s).pipelined && !has_band && blocks >= kSomeBlocks;
  }
  // Under a causal mask, blocks of earlier keys have more work. Without a window on the left: the
  // kernel counts on blocks of earlier keys that add to each tile that a later one adds to.
  static bool has_unequal_blocks(const Problem& p) {
    return p.window_right >= 0 && p.window_left < 0;
  }
  Specialisation tuned(const Problem& p, std::span<const int> v) const {
    Specialisation s = specialisation(p);
    set_buffers(s, v[0]);
    s.ping_pong = v[1] != 0;
    return s;
  }
  bool lists_fit(const Problem& p) const {
    const int64_t most =
        std::max(tiles_of(p.seqlen_q, tiles_.block_n), tiles_of(p.seqlen_k, tiles_.block_m));
    return most <= algorithm::MaskTile::kMost &&
           mask_list_words(p) <= std::numeric_limits<uint32_t>::max();
  }
  // Wide heads: whether workgroups share blocks in pairs.
  static bool is_pair(const Specialisation& s) { return s.dim_groups > 1; }
  // How many workgroups, or pairs of them, run at once.
  static int slots(const Specialisation& s, int compute_units) {
    return std::max(1, compute_units / s.dim_groups);
  }
  static kernels::TmaBackwardLayout layout_of(const Specialisation& s) {
    return kernels::TmaBackwardLayout::of(s.head_dim, s.head_dim_v, s.block_m, s.block_n,
                                          s.buffers);
  }
  static void set_buffers(Specialisation& s, int buffers) {
    s.buffers = buffers;
    s.lds_bytes = is_pair(s) ? kernels::TmaPairLayout::of(s.head_dim, s.head_dim_v).total
                             : layout_of(s).total;
  }
  const BackwardTmaTiles& tiles_;
};

}  // namespace

const Family* make_backward_tma(const Target& target) {
  return target.backward_tma ? new BackwardTma(target) : nullptr;
}

}  // namespace fulmen::gpu
