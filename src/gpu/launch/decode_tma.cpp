// kernels/forward/decode_tma.h: few queries, whose keys and values the tensor memory accelerator
// (TMA) brings.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gpu/launch/decode.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/score_functions.h"
#include "kernels/forward/decode_tma_layout.h"

namespace fulmen::gpu {
namespace {

// A warpgroup that multiplies, and one with the loader.
constexpr int kDecodeTmaLanes = 2 * kWarpgroupLanes;
constexpr int64_t kDecodeTmaMostTiles = 2;  // of rows a KV head: each reads all of K and V

class DecodeTma final : public Family {
 public:
  explicit DecodeTma(const Target& target) : Family(target), tiles_(*target.decode_tma) {}
  std::string_view name() const noexcept override { return "decode_tma"; }
  bool variable_lengths() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = tma_reads_all_keys(p); !support.yes) return support;
    if (packed_rows(p) > kDecodeTmaMostTiles * kWarpgroupRows) {
      return Support::no(
          std::to_string(packed_rows(p)) +
          " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
          std::to_string(kDecodeTmaMostTiles * kWarpgroupRows) + " are served");
    }
    if (masks_differ_by_head(p) && p.group_size() > 1)
      return Support::no("each head has a mask of its own, and several share a KV head's rows");
    const Specialisation s = specialisation(p, 1, 1);
    if (Support support = takes_mask_bits(s); !support.yes) return support;
    if (Support support = keys_lie_in_boxes(p); !support.yes) return support;
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(groups(p, 1) * most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    const Choice usual = choose(p, compute_units);
    return plan_of(p, chip, compute_units, usual.splits, usual.heads);
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    const Choice usual = choose(p, compute_units);
    tuning::Space space = splits_space(chip, usual.splits, most_splits(p, tiles_.min_split_keys));
    space.parameters.push_back(
        {"heads_in_row", usual.heads, two_fit_a_row(p) ? std::vector{1, 2} : std::vector{1}});
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> v) const override {
    // The values may be those of a larger problem (gpu/first_use.h).
    return plan_of(p, chip, compute_units, v[0], two_fit_a_row(p) ? v[1] : 1);
  }

 private:
  // A tile of keys lies in a page, or pages lie in a tile.
  static Support keys_lie_in_boxes(const Problem& p) {
    if (Support support = tma_takes_strides("k", p.k, p.k_shape()); !support.yes) return support;
    if (Support support = tma_takes_strides("v", p.v, p.v_shape()); !support.yes) return support;
    return tma_takes_pages(p);
  }
  const DecodeTmaShape& shape_for(const Problem& p, int heads) const {
    const int64_t dim = std::max(p.head_dim, p.head_dim_v) * heads;
    return *std::find_if(tiles_.shapes.begin(), tiles_.shapes.end() - 1,
                         [&](const DecodeTmaShape& shape) { return dim <= shape.max_head_dim; });
  }
  // heads: KV heads that are read as one row.
  struct Choice {
    int heads, splits;
    double cost;
  };
  // Rows of two heads are read faster, but half as many workgroups may have to split their keys, or
  // have too few bytes in flight.
  Choice choose(const Problem& p, int compute_units) const {
    constexpr int64_t kLeastKeys = 2048;  // of calls that were measured
    constexpr double kFaster = 1.03;
    const Choice one = choose_splits(p, 1, compute_units);
    if (!two_fit_a_row(p) || p.seqlen_k < kLeastKeys) return one;
    const Choice two = choose_splits(p, 2, compute_units);
    return two.cost <= kFaster * one.cost ? two : one;
  }
  // The number of splits that costs least: a power of two, or as many as run at once. A few groups
  // take the latter: their time is latency, which the cost does not have.
  Choice choose_splits(const Problem& p, int heads, int compute_units) const {
    const int64_t units = std::max(1, compute_units),
                  slots = units * shape_for(p, heads).min_workgroups;
    const int64_t most = most_splits(p, tiles_.min_split_keys);
    const int64_t at_once =
        std::clamp(slots / std::max<int64_t>(1, groups(p, heads)), int64_t{1}, most);
    Choice best{heads, 1, cost(p, heads, 1, units)};
    const auto consider = [&](int64_t asked) {
      const int64_t splits = with_keys(p, heads, asked);
      const double its_cost = cost(p, heads, splits, units);
      if (its_cost < best.cost) best = {heads, static_cast<int>(splits), its_cost};
    };
    consider(at_once);
    // A mask leaves some sequences fewer keys than others: as many splits as run at once even that
    // out.
    if (has_masks(p) && best.splits < at_once)
      best = {heads, static_cast<int>(with_keys(p, heads, at_once)), best.cost};
    if (2 * groups(p, heads) < units) return best;
    constexpr int64_t kMostRounds = 32;  // no call measured was faster by more
    for (int64_t splits = 2; splits <= std::min(most, kMostRounds * at_once); splits *= 2)
      consider(splits);
    return best;
  }
  // A split has whole tiles of keys: how many of them have keys.
  int64_t with_keys(const Problem& p, int heads, int64_t splits) const {
    return std::max<int64_t>(1, tiles_of(p.seqlen_k, round_up(tiles_of(p.seqlen_k, splits),
                                                              shape_for(p, heads).block_n)));
  }
  // Estimated time, as the bytes that could be read in it: K and V, more where workgroups are
  // spread unevenly or too few bytes are in flight; with splits also a second launch, and partial
  // results, written and read. A tail wave leaves multiprocessors idle, the longer the more each
  // workgroup reads. The numbers fit 46 calls by 1 to 32 splits on an H100, with an error of
  // 3 % (root mean square, docs/lab/nvidia_decode.md).
  double cost(const Problem& p, int heads, int64_t splits, int64_t units) const {
    constexpr double kUneven = 0.19, kFewUneven = 0.046, kNearlyFull = 0.9, kInFlight = 7.8e6,
                     kLaunch = 4e6, kMerging = 1.27;
    const DecodeTmaShape& shape = shape_for(p, heads);
    const auto workgroups = static_cast<double>(std::max<int64_t>(1, groups(p, heads) * splits));
    const auto slots = static_cast<double>(units * shape.min_workgroups);
    const double round = workgroups > slots ? slots : static_cast<double>(units);
    const double rounds = workgroups / round, last = rounds - std::floor(rounds);
    // Alone on a multiprocessor, one of two or more workgroups for which there is room reads faster
    // than its share.
    const bool alone = rounds < 1 && shape.min_workgroups > 1;
    const double uneven = last == 0 || last >= kNearlyFull ? 0
                          : alone                          ? kFewUneven
                                                           : kUneven / rounds * std::sqrt(1 - last);
    const auto tile_bytes = static_cast<double>(shape.block_n * heads * key_bytes(p));
    const double in_flight = std::min(workgroups, slots) * shape.buffers * tile_bytes;
    const auto read = static_cast<double>(p.batch * p.num_kv_heads * p.seqlen_k * key_bytes(p));
    const auto part_row = static_cast<double>((p.head_dim_v + 2) * int64_t{sizeof(float)});
    const double parts =
        2 * static_cast<double>(splits * p.batch * p.num_heads * p.seqlen_q) * part_row;
    return read * std::max(1 + uneven, kInFlight / in_flight) +
           (splits > 1 ? kLaunch + kMerging * parts : 0);
  }
  // Two KV heads can be read as one: a panel each, neighbours in memory, and their query rows, with
  // one mask, are one tile.
  bool two_fit_a_row(const Problem& p) const {
    const int64_t dim = target().panel_columns;
    const bool neighbours = p.k.strides[2] == dim && p.v.strides[2] == dim;
    return neighbours && p.head_dim == dim && p.head_dim_v == dim && p.num_kv_heads % 2 == 0 &&
           2 * packed_rows(p) <= kWarpgroupRows && !masks_differ_by_head(p);
  }
  static int64_t row_tiles(const Problem& p) { return tiles_of(packed_rows(p), kWarpgroupRows); }
  static int64_t groups(const Problem& p, int heads) {
    return p.batch * p.num_kv_heads / heads * row_tiles(p);
  }

  Specialisation specialisation(const Problem& p, int heads, int num_splits) const {
    constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V
    const DecodeTmaShape& shape = shape_for(p, heads);
    const int64_t panel = target().panel_columns;
    Specialisation s;
    s.entry = "forward/decode_tma.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
    s.head_dim_v = static_cast<int>(
        round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * panel : kProductDims));
    s.block_m = kWarpgroupRows;
    s.block_n = shape.block_n;
    s.workgroup = kDecodeTmaLanes;
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    s.packed_rows = 1;
    s.tensor_maps = 1;
    s.splits = num_splits > 1 ? 1 : 0;
    s.heads_in_row = heads;
    s.head_dim_v *= heads;
    const int key_dims = static_cast<int>(round_up(s.head_dim, panel));
    const int value_dims = static_cast<int>(round_up(s.head_dim_v, panel));
    s.lds_bytes =
        kernels::TmaDecodeLayout::of(key_dims, key_dims * heads, value_dims, s.block_n, s.buffers)
            .total;
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    return s;
  }
  // Partial results, and what merges them, are those of decode.h, which also runs where pointers
  // are no multiples of 16.
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units, int num_splits,
                     int heads) const {
    LaunchPlan plan = decode_plan(p, *target().extends, chip, num_splits);
    if (plan.launches.empty()) return plan;
    plan.unaligned = std::make_shared<LaunchPlan>(plan);
    const Specialisation s = specialisation(p, heads, num_splits);
    const int64_t workgroups = groups(p, heads) * num_splits;
    const auto products =
        std::find_if(plan.launches.begin(), plan.launches.end(), [](const KernelLaunch& launch) {
          return launch.specialisation.entry == "forward/decode.h";
        });
    *products = {s, workgroups, launches_early(s, workgroups, compute_units)};
    plan.launches.erase(plan.launches.begin(), products);  // decode.h's bits of a mask
    add_mask_bits(p, plan);
    plan.arguments.row_tiles = static_cast<int>(row_tiles(p));
    plan.arguments.split_keys = round_up(plan.arguments.split_keys, s.block_n);
    return plan;
  }
  // Returns true for programmatic dependent launch, which starts the kernel while the work ahead
  // ends. Behind a launch like itself its workgroups take slots as these become free, and if they
  // are fewer than slots, several may read on one multiprocessor. With splits decode_combine.h is
  // ahead, which lets them start when all slots are free.
  static bool launches_early(const Specialisation& s, int64_t workgroups, int compute_units) {
    const int64_t places = int64_t{std::max(1, compute_units)} * s.min_workgroups;
    return s.splits != 0 || s.min_workgroups == 1 || 10 * workgroups >= 9 * places;
  }

  const DecodeTmaTiles& tiles_;
};

}  // namespace

const Family* make_decode_tma(const Target& target) {
  return target.decode_tma ? new DecodeTma(target) : nullptr;
}

}  // namespace fulmen::gpu
