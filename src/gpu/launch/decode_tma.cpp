// kernels/forward/decode_tma.h: few queries, whose keys and values the tensor memory accelerator (TMA) brings.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gpu/launch/decode.h"
#include "kernels/tile/layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kDecodeTmaLanes = 2 * kWarpgroupLanes;  // a warpgroup that multiplies, and one with the loader
constexpr int64_t kDecodeTmaMostKeys = (int64_t{1} << 31) - 1024;
constexpr int64_t kDecodeTmaMostTiles = 2;  // of rows a KV head: each reads all of K and V

class DecodeTma final : public Family {
 public:
  explicit DecodeTma(const Target& target) : Family(target), tiles_(*target.decode_tma) {}
  std::string_view name() const noexcept override { return "decode_tma"; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (p.keep_mask.present) return Support::no("values that a keep_mask leaves out would have to be cleared after the TMA");
    if (p.packed_q() || p.packed_k()) return Support::no("the TMA reads sequences at multiples of one length");
    if (p.leftpad_k.present) return Support::no("the TMA reads keys from the first row on, leftpad_k moves them");
    if (!strides_are_whole(p)) return Support::no("the TMA reads rows and strides of whole pieces of 16 bytes");
    if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0 || (p.paged() && p.num_pages == 0))
      return Support::no("the TMA reads tensors that have a row");
    if (p.seqlen_k > kDecodeTmaMostKeys) return Support::no(std::to_string(p.seqlen_k) + " keys, the TMA counts rows by 32 bits");
    if (packed_rows(p) > kDecodeTmaMostTiles * kWarpgroupRows) {
      return Support::no(std::to_string(packed_rows(p)) +
                         " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
                         std::to_string(kDecodeTmaMostTiles * kWarpgroupRows) + " are served");
    }
    const Specialisation s = specialisation(p, 1);
    if (Support support = keys_lie_in_boxes(p, s); !support.yes) return support;
    if (Support support = lds_fits(s.lds_bytes, chip); !support.yes) return support;
    return grid_fits(groups(p) * most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, compute_units, choose_splits(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    return splits_space(chip, choose_splits(p, compute_units), most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units, std::span<const int> v) const override {
    return plan_of(p, chip, compute_units, v[0]);
  }

 private:
  // A tile of keys lies in a page, or pages lie in a tile.
  static Support keys_lie_in_boxes(const Problem& p, const Specialisation& s) {
    if (Support support = tma_takes_strides("k", p.k, p.k_shape()); !support.yes) return support;
    if (Support support = tma_takes_strides("v", p.v, p.v_shape()); !support.yes) return support;
    constexpr int kLeastRows = 16;
    if (!p.paged() || s.page_size >= kLeastRows) return {};
    return Support::no("page_size " + std::to_string(p.page_size) + ": the TMA brings pages of 16, 32, ... 1024 rows");
  }
  const DecodeTmaShape& shape_for(const Problem& p) const {
    const int64_t dim = std::max(p.head_dim, p.head_dim_v) * heads_in_row(p);
    return *std::find_if(tiles_.shapes.begin(), tiles_.shapes.end() - 1,
                         [&](const DecodeTmaShape& shape) { return dim <= shape.max_head_dim; });
  }
  // Workgroups on three quarters of the multiprocessors read as fast as memory gives, so that splits, whose partial results are
  // merged by a second kernel, only serve to have as many on each. Where there are fewer, as many splits as run at once.
  int choose_splits(const Problem& p, int compute_units) const {
    const int64_t units = std::max(1, compute_units), slots = units * shape_for(p).min_workgroups;
    const int64_t most = most_splits(p, tiles_.min_split_keys);
    const int64_t rounds = tiles_of(groups(p), units), all_bytes = p.batch * p.num_kv_heads * p.seqlen_k * key_bytes(p);
    if (4 * groups(p) >= 3 * units) {
      // Even loads save a quarter of the time at most.
      const bool is_worth_merging = 4 * merging_bytes(p) <= all_bytes;
      return rounds == 1 || 10 * groups(p) >= 9 * rounds * units || most == 1 || !is_worth_merging ? 1 : 2;
    }
    const int64_t splits = std::clamp(slots / std::max<int64_t>(1, groups(p)), int64_t{1}, most);
    // Bytes, by the time that reading as many takes where all multiprocessors do.
    const auto reading = [&](int64_t n) {
      return static_cast<double>(all_bytes) * std::max(1.0, 0.75 * static_cast<double>(units) / static_cast<double>(groups(p) * n));
    };
    return reading(splits) + static_cast<double>(merging_bytes(p)) < reading(1) ? static_cast<int>(splits) : 1;
  }
  // How many KV heads are read as one: two of a panel each that are neighbours in memory, where their query rows are one tile.
  int heads_in_row(const Problem& p) const {
    const int64_t dim = target().panel_columns;
    const bool neighbours = p.k.strides[2] == dim && p.v.strides[2] == dim;
    const bool fit = p.head_dim == dim && p.head_dim_v == dim && p.num_kv_heads % 2 == 0 && 2 * packed_rows(p) <= kWarpgroupRows;
    return neighbours && fit ? 2 : 1;
  }
  static int64_t row_tiles(const Problem& p) { return tiles_of(packed_rows(p), kWarpgroupRows); }
  int64_t groups(const Problem& p) const { return p.batch * p.num_kv_heads / heads_in_row(p) * row_tiles(p); }

  Specialisation specialisation(const Problem& p, int num_splits) const {
    constexpr int64_t kProductDims = 16, kMostProductDims = 192;  // of one product of P V
    const DecodeTmaShape& shape = shape_for(p);
    const int64_t panel = target().panel_columns;
    Specialisation s;
    s.entry = "forward/decode_tma.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, kProductDims));
    s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, p.head_dim_v > kMostProductDims ? 2 * panel : kProductDims));
    s.block_m = kWarpgroupRows;
    s.block_n = shape.block_n;
    s.workgroup = kDecodeTmaLanes;
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    s.packed_rows = 1;
    s.tensor_maps = 1;
    s.splits = num_splits > 1 ? 1 : 0;
    s.heads_in_row = heads_in_row(p);
    s.head_dim_v *= s.heads_in_row;
    const int key_dims = static_cast<int>(round_up(s.head_dim, panel)),
              value_dims = static_cast<int>(round_up(s.head_dim_v, panel));
    s.lds_bytes = kernels::TmaDecodeLayout::of(key_dims, key_dims * s.heads_in_row, value_dims, s.block_n, s.buffers).total;
    specialise_for(p, s);
    return s;
  }
  // Partial results, and what merges them, are those of decode.h, which also runs where pointers are no multiples of 16.
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int compute_units, int num_splits) const {
    LaunchPlan plan = decode_plan(p, *target().extends, chip, num_splits);
    if (plan.launches.empty()) return plan;
    plan.unaligned = std::make_shared<LaunchPlan>(plan);
    const Specialisation s = specialisation(p, num_splits);
    const int64_t workgroups = groups(p) * num_splits;
    plan.launches.front() = {s, workgroups, may_come_early(s, workgroups, compute_units)};
    plan.arguments.row_tiles = static_cast<int>(row_tiles(p));
    plan.arguments.split_keys = round_up(plan.arguments.split_keys, s.block_n);
    return plan;
  }
  // While the launch ahead ends. Workgroups that come early take the first places that are free: of fewer workgroups than places
  // several would read by one multiprocessor, which takes longer the more each has to read.
  static bool may_come_early(const Specialisation& s, int64_t workgroups, int compute_units) {
    const int64_t places = int64_t{std::max(1, compute_units)} * s.min_workgroups;
    return s.splits != 0 || s.min_workgroups == 1 || 10 * workgroups >= 9 * places;
  }

  const DecodeTmaTiles& tiles_;
};

}  // namespace

const Family* make_decode_tma(const Target& target) { return target.decode_tma ? new DecodeTma(target) : nullptr; }

}  // namespace fulmen::gpu
