// kernels/forward/decode.h and forward/decode_combine.h: few queries, the keys split so that every
// compute unit has work.
#include "gpu/launch/decode.h"

#include <algorithm>
#include <bit>

#include "gpu/launch/mask_bits.h"
#include "gpu/launch/quantized.h"
#include "kernels/forward/decode_layout.h"
#include "kernels/tile/tile_ring_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kDecodeRows = 16;      // of a workgroup
constexpr int64_t kDecodeMostTiles = 2;  // of 16 rows a KV head: each reads all of K and V
constexpr int64_t kMostSplits = 256;     // that are tried

int64_t row_tiles(const Problem& p) { return tiles_of(packed_rows(p), kDecodeRows); }

// Heads of latent attention: 16 to 128 of them share one KV head that is wide, and tiles of one
// head's queries would each read all of it.
bool reads_keys_less_often(const Problem& p) {
  constexpr int64_t kPrefillRows = 32;
  return has_wide_heads(p) &&
         2 * row_tiles(p) <= p.group_size() * tiles_of(p.seqlen_q, kPrefillRows);
}

class SplitKv final : public Family {
 public:
  explicit SplitKv(const Target& target) : Family(target), tiles_(*target.decode) {}
  std::string_view name() const noexcept override { return "decode"; }
  bool variable_lengths() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    if (Support support = multiplies_stored(p, target()); !support.yes) return support;
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    const int64_t rows = packed_rows(p);
    if (rows > kDecodeMostTiles * kDecodeRows && !reads_keys_less_often(p)) {
      return Support::no(
          std::to_string(rows) +
          " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
          std::to_string(kDecodeMostTiles * kDecodeRows) + " are served");
    }
    if (Support support = lds_fits(lds_bytes(p, usual_shape(p)), chip); !support.yes)
      return support;
    const int64_t dim = std::max(p.head_dim, p.head_dim_v);
    if (p.bias.present && dim > tiles_.most_far_bias_dim && !strides_are_whole(p)) {
      return Support::no(
          "a bias beside rows that are not at multiples of 16 bytes is served up to head_dim " +
          std::to_string(tiles_.most_far_bias_dim) + ", head_dim is " + std::to_string(dim));
    }
    return grid_fits(groups(p) * most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, choose_shape(p, chip, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    tuning::Space space;
    space.wave_size = chip.wave_size;
    const Shape shape = choose_shape(p, chip, compute_units);
    const int usual = shape.num_splits;
    const int64_t most =
        std::min<int64_t>(kMostSplits, p.seqlen_k / (waves_of(p) * tiles_.block_n));
    std::vector<int> splits;
    for (int n = 1; n <= std::max<int64_t>(1, most); n *= 2) splits.push_back(n);
    for (const int near : {usual * 3 / 4, usual * 3 / 2}) {
      if (near >= 1 && near <= most &&
          std::find(splits.begin(), splits.end(), near) == splits.end())
        splits.push_back(near);
    }
    std::sort(splits.begin(), splits.end());
    space.parameters = {{"waves", shape.waves, {1, 2, 4, 8}},
                        {"block_n", shape.block_n, {16, 32}},
                        {"num_splits", usual, splits}};
    if (ring_of(p) != nullptr)
      space.parameters.push_back({"buffers", shape.buffers, {1, 2, 3, 4, 5, 6}});
    tuning::include_usual(space);
    space.takes = [this, p, chip](std::span<const int> v) -> Support {
      const int dim = static_cast<int>(round_up(p.head_dim, target().mma_k)),
                dim_v = head_dim_v(p) / dim_groups(p);
      if (v[0] % dim_groups(p) != 0)
        return Support::no(std::to_string(dim_groups(p)) + " waves share the dims of v");
      const Shape tuned = shape_of(p, v);
      if (Support support = lds_fits(lds_bytes(p, tuned), chip); !support.yes) return support;
      if (Support support = keys_fill_products(v[1], target()); !support.yes) return support;
      // Queries and outputs, and a step's keys and values: elements of 16 bits.
      const int64_t copies = target().operand_copies;
      const int64_t words = int64_t{kDecodeRows} * (dim * copies / 2 + dim_v) +
                            int64_t{v[1]} * (kDecodeRows + (dim + dim_v) * copies / 2);
      return v[1] == tiles_.block_n || tuned.buffers > 1
                 ? Support{}
                 : registers_fit(words / chip.wave_size, chip, v[0], 1, 1);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, chip, shape_of(p, v));
  }

  struct Shape {
    int waves, block_n, num_splits;
    int buffers = 1;  // of each wave's ring; 1: operands come from memory
    int min_workgroups = 1;
  };
  LaunchPlan plan_of(const Problem& p, const Chip& chip, const Shape& shape) const {
    LaunchPlan plan = launches_of(p, chip, shape);
    if (shape.buffers == 1 || plan.launches.empty()) return plan;
    // Where pointers are no multiples of 16.
    Shape direct = shape;
    direct.buffers = direct.min_workgroups = 1;
    plan.unaligned = std::make_shared<LaunchPlan>(launches_of(p, chip, direct));
    return plan;
  }

 private:
  LaunchPlan launches_of(const Problem& p, const Chip& chip, const Shape& shape) const {
    Specialisation s;
    s.entry = "forward/decode.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(p.head_dim, target().mma_k));
    s.head_dim_v = head_dim_v(p);
    s.block_m = kDecodeRows;
    s.block_n = shape.block_n;
    s.workgroup = shape.waves * chip.wave_size;
    s.packed_rows = true;
    s.dim_groups = dim_groups(p);
    s.lds_bytes = lds_bytes(p, shape);
    s.buffers = shape.buffers;
    s.min_workgroups = shape.min_workgroups;
    specialise_for(p, s);
    s.splits = shape.num_splits > 1;
    LaunchPlan plan =
        split_plan(p, chip, s, row_tiles(p), shape.num_splits, int64_t{shape.waves} * s.block_n);
    add_mask_bits(p, plan);
    return plan;
  }
  // Null where operands come straight from memory: pieces of 16 bytes alone are copied.
  const DecodeRingShape* ring_of(const Problem& p) const {
    if (!p.quantized_kv() || p.seqlen_k == 0 || dim_groups(p) > 1 || !strides_are_whole(p) ||
        !rows_are_pieces(p.k, p.k_dtype, p.head_dim) ||
        !rows_are_pieces(p.v, p.v_dtype, p.head_dim_v))
      return nullptr;
    for (const DecodeRingShape& ring : tiles_.rings) {
      if (std::max(dims(p), head_dim_v(p)) <= ring.max_head_dim) return &ring;
    }
    return nullptr;
  }
  static bool rows_are_pieces(const TensorSpec& spec, DType dtype, int64_t head_dim) {
    constexpr int64_t kPieceBytes = 16;
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    if (head_dim * bytes % kPieceBytes != 0) return false;
    return std::all_of(spec.strides.begin(), spec.strides.begin() + 3,
                       [&](int64_t stride) { return stride * bytes % kPieceBytes == 0; });
  }
  Shape shape_of(const Problem& p, std::span<const int> v) const {
    Shape shape{v[0], v[1], v[2]};
    if (v.size() > 3 && v[3] > 1) {
      shape.buffers = v[3];
      const DecodeRingShape& usual = *ring_of(p);
      shape.min_workgroups = std::max(1, usual.min_workgroups * usual.waves / shape.waves);
    }
    return shape;
  }
  Shape usual_shape(const Problem& p) const { return {waves_of(p), tiles_.block_n, 1}; }
  int dims(const Problem& p) const {
    return static_cast<int>(round_up(p.head_dim, target().mma_k));
  }
  // Waves that share their keys, each with as many dims of v.
  int dim_groups(const Problem& p) const {
    const int64_t dims = has_wide_heads(p) ? tiles_.wide_wave_head_dim_v : tiles_.wave_head_dim_v;
    int groups = 1;
    while (p.head_dim_v > groups * dims) groups *= 2;
    return groups;
  }
  int waves_of(const Problem& p) const { return std::max(tiles_.waves, dim_groups(p)); }
  int head_dim_v(const Problem& p) const {
    return static_cast<int>(round_up(p.head_dim_v, int64_t{32} * dim_groups(p)));
  }
  int lds_bytes(const Problem& p, const Shape& shape) const {
    const auto bytes = [&](DType dtype) {
      return static_cast<int>(size_of(p.quantized_kv() ? dtype : p.dtype));
    };
    const kernels::TileRingLayout ring = kernels::TileRingLayout::of(
        dims(p), bytes(p.k_dtype), head_dim_v(p), bytes(p.v_dtype), shape.block_n);
    return kernels::decode_lds_bytes(shape.waves, dim_groups(p), head_dim_v(p), shape.buffers,
                                     ring.tile_bytes);
  }
  static int64_t groups(const Problem& p) { return p.batch * p.num_kv_heads * row_tiles(p); }

  Shape choose_shape(const Problem& p, const Chip& chip, int compute_units) const {
    if (const DecodeRingShape* ring = ring_of(p)) {
      Shape shape{ring->waves, ring->block_n, 1, ring->buffers, ring->min_workgroups};
      if (lds_fits(lds_bytes(p, shape), chip).yes) {
        shape.num_splits =
            choose_splits(p, groups(p), tiles_.min_split_keys, two_workgroups(compute_units));
        return shape;
      }
    }
    if (fills_unsplit(p, chip, compute_units)) return {tiles_.unsplit_waves, tiles_.block_n, 1};
    return {waves_of(p), tiles_.block_n,
            choose_splits(p, groups(p), tiles_.min_split_keys, two_workgroups(compute_units))};
  }

  // Whether workgroups with all keys fill the chip once: as many waves as with two splits, and no
  // second kernel that combines them.
  bool fills_unsplit(const Problem& p, const Chip& chip, int compute_units) const {
    const int waves = tiles_.unsplit_waves, dim_v = head_dim_v(p);
    if (waves == 0 || dim_v > tiles_.unsplit_head_dim_v ||
        !lds_fits(lds_bytes(p, {waves, tiles_.block_n, 1}), chip).yes)
      return false;
    const bool paired = std::max(p.head_dim, p.head_dim_v) <= tiles_.paired_head_dim;
    const int64_t slots = std::max(1, compute_units) * (paired ? 2 : 1);
    return groups(p) <= slots && 10 * groups(p) >= 9 * slots;
  }

  const DecodeTiles& tiles_;
};

}  // namespace

int choose_splits(const Problem& p, int64_t groups, int64_t min_split_keys, int64_t slots) {
  const int64_t most = most_splits(p, min_split_keys);
  // Costs are in units of a full wave of workgroups that reads all keys; a split more costs as much
  // as reading some dozen keys.
  const auto keys = static_cast<double>(p.seqlen_k + 1);
  // Merging takes as long as reading so many bytes of keys: a workgroup of a wave a query row, as
  // measured on an H100.
  constexpr int64_t kRowBytes = 6 << 10;
  const int64_t merging_bytes = p.batch * p.num_heads * p.seqlen_q * kRowBytes;
  const double merging =
      static_cast<double>(merging_bytes) / (static_cast<double>(slots * key_bytes(p)) * keys);
  int best = 1;
  double best_cost = 0;
  for (int64_t splits = 1; splits <= std::min<int64_t>(most, slots); ++splits) {
    const int64_t rounds = (groups * splits + slots - 1) / slots;
    const double cost =
        static_cast<double>(rounds) * (1.0 / static_cast<double>(splits) + 64.0 / keys) +
        (splits > 1 ? merging : 0);
    if (splits == 1 || cost < 0.98 * best_cost) {
      best = static_cast<int>(splits);
      best_cost = cost;
    }
  }
  return best;
}

void add_combine(const Problem& p, const Chip& chip, const Specialisation& split,
                 LaunchPlan& plan) {
  constexpr int kLanes = 256;
  constexpr int kFewSplits = 8;  // that the lanes of a row merge as quickly as several waves: they
                                 // have half of them in flight
  constexpr int kPieceDims = 4;  // of a row that moves as vectors
  Specialisation s = helper_kernel(split, "forward/decode_combine.h", kLanes);
  s.head_dim = s.head_dim_v;
  s.dropout = split.dropout;
  // The bias says nothing else here: the parts' maxima are in natural units.
  if (natural_units(p)) s.bias = 0;
  if (plan.arguments.num_splits <= kFewSplits) {
    const int pieces = s.whole_rows != 0 ? s.head_dim_v / kPieceDims : s.head_dim_v;
    s.block_m =
        kLanes / std::min(chip.wave_size,
                          static_cast<int>(std::bit_ceil(static_cast<unsigned>(pieces))));  // rows
  } else {
    s.block_m = 1;
    s.lds_bytes = 4 * kLanes / chip.wave_size * (2 + s.head_dim_v);
    s.whole_rows = 0;  // nothing depends on it
  }
  const int64_t rows = p.batch * p.num_heads * p.seqlen_q - plan.arguments.first_split_row;
  plan.launches.push_back({s, tiles_of(rows, s.block_m), true});
  plan.partial_out_floats = round_up(rows * p.head_dim_v * plan.arguments.num_splits, 16);
  plan.partial_row_floats = round_up(rows * plan.arguments.num_splits, 16);
}

LaunchPlan split_plan(const Problem& p, const Chip& chip, const Specialisation& s,
                      int64_t row_tiles, int num_splits, int64_t step_keys) {
  LaunchPlan plan;
  plan.launches.push_back({s, p.batch * p.num_kv_heads * row_tiles * num_splits});
  plan.arguments = arguments_of(p);
  plan.arguments.row_tiles = static_cast<int>(row_tiles);
  plan.arguments.num_splits = plan.num_splits = num_splits;
  plan.arguments.split_keys = round_up(tiles_of(p.seqlen_k, num_splits), step_keys);
  if (num_splits > 1 && plan.launches.front().workgroups > 0) add_combine(p, chip, s, plan);
  return plan;
}

tuning::Space splits_space(const Chip& chip, int usual, int64_t most) {
  tuning::Space space;
  space.wave_size = chip.wave_size;
  std::vector<int> splits;
  for (int64_t n = 1; n <= most; n *= 2) splits.push_back(static_cast<int>(n));
  space.parameters = {{"num_splits", usual, splits}};
  tuning::include_usual(space);
  space.takes = [](std::span<const int> /*values*/) -> Support { return {}; };
  return space;
}

Support decode_serves(const Problem& p, const Target& target, const Chip& chip) {
  return SplitKv(target).serves(p, chip);
}

LaunchPlan decode_plan(const Problem& p, const Target& target, const Chip& chip, int num_splits) {
  const DecodeTiles& tiles = *target.decode;
  return SplitKv(target).plan_of(p, chip, {tiles.waves, tiles.block_n, num_splits});
}

const Family* make_decode(const Target& target) {
  return target.decode ? new SplitKv(target) : nullptr;
}

}  // namespace fulmen::gpu
