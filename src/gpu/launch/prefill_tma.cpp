// kernels/forward/prefill_tma.h: tiles of Hopper's warpgroup products, brought by the tensor memory accelerator (TMA).
#include <algorithm>
#include <string>

#include "gpu/launch/family.h"
#include "kernels/tile/layout.h"
#include "kernels/tile/nvidia/register_shares.h"

namespace fulmen::gpu {
namespace {

constexpr int kLanes = 128, kRows = 64;  // a warpgroup's
constexpr int64_t kElementBytes = 2;
constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V
constexpr int64_t kCacheBytes = 32 << 20;                     // of the L2, for keys and values

bool has_band(const Problem& p) { return p.window_left >= 0 || p.window_right >= 0; }

// Do tiles of 192 rows leave more rows empty than tiles of 128?
bool wastes_rows(const Problem& p) {
  constexpr int64_t kWide = 192, kNarrow = 128;
  return tiles_of(p.seqlen_q, kWide) * kWide * 8 > tiles_of(p.seqlen_q, kNarrow) * kNarrow * 9;
}

const PrefillTmaShape& first_of(std::span<const PrefillTmaRow> rows, const Problem& p) {
  const int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const auto row = std::find_if(rows.begin(), rows.end() - 1, [&](const PrefillTmaRow& r) {
    return dim <= r.max_head_dim && r.band.value_or(has_band(p)) == has_band(p) && p.seqlen_k >= r.min_keys &&
           p.seqlen_k <= r.max_keys && !(r.wide && wastes_rows(p));
  });
  return row->shape;
}

int64_t tiles_of_queries(const Problem& p, const PrefillTmaShape& shape) {
  return tiles_of(p.seqlen_q, int64_t{kRows} * shape.warpgroups) * p.batch * p.num_heads;
}

// Where a device has room for more tiles than there are, they have a warpgroup each.
const PrefillTmaShape& shape_for(const Problem& p, const Target& target, int compute_units) {
  const PrefillTmaShape& shape = first_of(target.prefill_tma->rows, p);
  return tiles_of_queries(p, shape) >= compute_units ? shape : first_of(target.prefill_tma->few, p);
}

// Persistent where several tiles fall to each multiprocessor. With a band these are pairs of equal work, of which the last round
// may have few: long sequences are better off with tiles of their own, longest first.
bool is_persistent(const Problem& p, const Target& target, const PrefillTmaShape& shape, int compute_units) {
  if (!has_band(p)) return true;
  const int64_t pairs = tiles_of_queries(p, shape) / 2;
  return p.seqlen_k < target.prefill_tma->persistent_keys && pairs >= int64_t{2} * compute_units * shape.min_workgroups;
}

Specialisation specialisation(const Problem& p, const Target& target, const PrefillTmaShape& shape, bool persistent) {
  const int64_t panel = target.panel_columns;
  Specialisation s;
  s.entry = "forward/prefill_tma.h";
  s.target = &target;
  // Products are of 16 dims, two of them make up more than 192 of v.
  s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * kProductDims : kProductDims));
  s.block_m = kRows * shape.warpgroups;
  s.block_n = shape.block_n;
  s.workgroup = kLanes * (shape.warpgroups + 1);  // a producer
  s.buffers = shape.buffers;
  s.queries_in_lds = true;
  s.min_workgroups = shape.min_workgroups;
  s.ping_pong = shape.ping_pong && shape.warpgroups > 1;
  s.persistent = persistent;
  s.tensor_maps = true;
  s.lds_bytes = kernels::TmaForwardLayout::of(static_cast<int>(round_up(s.head_dim, panel)),
                                              static_cast<int>(round_up(s.head_dim_v, panel)), s.block_m, s.block_n, s.buffers)
                    .total;
  specialise_for(p, s);
  return s;
}
Specialisation specialisation(const Problem& p, const Target& target, int compute_units) {
  const PrefillTmaShape& shape = shape_for(p, target, compute_units);
  return specialisation(p, target, shape, is_persistent(p, target, shape, compute_units));
}

// The digits of QueryTiles: of a workgroup's first tile (or pair of tiles) to its next one.
void make_persistent(const Problem& p, LaunchPlan& plan, int compute_units) {
  KernelLaunch& launch = plan.launches.front();
  kernels::ForwardArguments& a = plan.arguments;
  const bool band = launch.specialisation.band, pairs_heads = p.num_heads % 2 == 0;
  const int64_t tiles = band && !pairs_heads ? tiles_of(a.row_tiles, 2) : a.row_tiles;
  const int64_t heads = band && pairs_heads ? p.num_heads / 2 : p.num_heads;
  launch.workgroups = std::min(tiles * heads * p.batch, int64_t{std::max(1, compute_units)} * launch.specialisation.min_workgroups);
  if (launch.workgroups == 0) return;
  a.step_tile = static_cast<int>(launch.workgroups % tiles);
  a.step_head = static_cast<int>(launch.workgroups / tiles % heads);
  a.step_batch = static_cast<int>(launch.workgroups / tiles / heads);
}

LaunchPlan plan_of(const Problem& p, const Specialisation& s, int compute_units) {
  LaunchPlan plan = query_tile_plan(p, s);
  if (s.persistent) {
    make_persistent(p, plan, compute_units);
  } else {
    const int64_t head_bytes = p.seqlen_k * (p.head_dim + p.head_dim_v) * kElementBytes / p.group_size();
    const int64_t heads = std::max<int64_t>(1, p.batch * p.num_heads);
    plan.arguments.heads_in_turn = static_cast<int>(std::clamp(kCacheBytes / std::max<int64_t>(1, head_bytes), int64_t{1}, heads));
  }
  const Specialisation unaligned = prefill_wgmma_specialisation(p, *s.target);
  plan.unaligned_launches.push_back({unaligned, query_tile_workgroups(p, unaligned)});
  plan.unaligned_row_tiles = static_cast<int>(tiles_of(p.seqlen_q, unaligned.block_m));
  return plan;
}

// A tensor map has no stride of 0, and none below. Of a dimension with one element the stride says nothing.
Support has_strides(const char* name, const TensorSpec& spec, int64_t batch, int64_t rows, int64_t heads) {
  const int64_t extents[] = {batch, rows, heads};
  for (int d = 0; d < 3; ++d) {
    if (extents[d] > 1 && spec.strides[d] <= 0) {
      return Support::no(std::string(name) + " has a stride of " + std::to_string(spec.strides[d]) +
                         ": the TMA takes strides of more than 0");
    }
  }
  return {};
}

class PrefillTma final : public Family {
 public:
  using Family::Family;
  std::string_view name() const noexcept override { return "prefill_tma"; }
  bool dropout() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.keep_mask.present) return Support::no("values that a keep_mask leaves out would have to be cleared after the TMA");
    if (Support support = tma_reads(p); !support.yes) return support;
    const Specialisation s = specialisation(p, target(), kUsualComputeUnits);
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(query_tile_workgroups(p, specialisation(p, target(), PrefillTmaShape{1, 64, 2, 2, false}, false)));
  }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int compute_units) const override {
    return plan_of(p, specialisation(p, target(), compute_units), compute_units);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Specialisation usual = specialisation(p, target(), compute_units);
    tuning::Space space;
    space.wave_size = chip.wave_size;
    space.parameters = {{"block_m", usual.block_m, {kRows, 2 * kRows, 3 * kRows}},
                        {"block_n", usual.block_n, {32, 64, 80, 96, 128, 176}},
                        {"buffers", usual.buffers, {2, 3}},
                        {"min_workgroups", usual.min_workgroups, {1, 2}},
                        {"ping_pong", usual.ping_pong ? 1 : 0, {0, 1}},
                        {"persistent", usual.persistent ? 1 : 0, {0, 1}}};
    space.takes = [this, p, chip](std::span<const int> v) -> Support {
      const Specialisation s = specialisation(p, target(), shape_of_values(v), v[5] != 0);
      if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes) return support;
      const int warpgroups = s.block_m / kRows;
      if (warpgroups == 1 && s.min_workgroups == 1) return Support::no("one warpgroup alone has no use for all registers");
      if (warpgroups == 1 && v[4] != 0) return Support::no("one warpgroup has none to take turns with");
      constexpr int kRest = 24;
      const int had = kernels::RegisterShares::of(warpgroups, s.min_workgroups, kernels::kTmaProducer).consumer;
      const int needed = s.head_dim_v / 2 + s.block_n / 2 + s.block_n / 4 + kRest;
      if (needed <= had) return {};
      return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " + std::to_string(had));
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& /*chip*/, int compute_units, std::span<const int> v) const override {
    return plan_of(p, specialisation(p, target(), shape_of_values(v), v[5] != 0), compute_units);
  }

 private:
  static constexpr int kUsualComputeUnits = 1;  // the tiles of many: the largest
  static PrefillTmaShape shape_of_values(std::span<const int> v) { return {v[0] / kRows, v[1], v[2], v[3], v[4] != 0}; }
};

}  // namespace

Support tma_reads(const Problem& p) {
  if (p.variable_lengths()) return Support::no("the TMA reads sequences of one length");
  if (!strides_are_whole(p)) return Support::no("the TMA reads rows and strides of whole pieces of 16 bytes");
  if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0) return Support::no("the TMA reads tensors that have a row");
  if (Support support = has_strides("q", p.q, p.batch, p.seqlen_q, p.num_heads); !support.yes) return support;
  if (Support support = has_strides("k", p.k, p.batch, p.seqlen_k, p.num_kv_heads); !support.yes) return support;
  if (Support support = has_strides("v", p.v, p.batch, p.seqlen_k, p.num_kv_heads); !support.yes) return support;
  if (p.pass == Pass::forward) return {};
  return has_strides("dout", p.dout, p.batch, p.seqlen_q, p.num_heads);
}

const Family* make_prefill_tma(const Target& target) { return target.prefill_tma ? new PrefillTma(target) : nullptr; }

}  // namespace fulmen::gpu
