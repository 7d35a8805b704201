// kernels/forward/decode_portable.h: few queries without matrix instructions, the keys split so
// that every compute unit has work.
#include <algorithm>
#include <bit>

#include "gpu/launch/decode.h"
#include "gpu/launch/mask_bits.h"
#include "gpu/launch/square.h"

namespace fulmen::gpu {
namespace {

class DecodePortable final : public Family {
 public:
  explicit DecodePortable(const Target& target) : Family(target), tiles_(*target.decode_portable) {}
  std::string_view name() const noexcept override { return "decode"; }
  bool variable_lengths() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  HeadDims most_head_dims() const noexcept override { return {kMaxHeadDim, kMaxHeadDimV}; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
    if (packed_rows(p) > tiles_.most_rows) {
      return Support::no(
          std::to_string(packed_rows(p)) +
          " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
          std::to_string(tiles_.most_rows) + " are served");
    }
    if (Support support = lds_fits(lds_bytes(p, chip), chip); !support.yes) return support;
    return grid_fits(groups(p) * most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, usual_splits(p, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    return splits_space(chip, usual_splits(p, compute_units),
                        most_splits(p, tiles_.min_split_keys));
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/,
                        std::span<const int> v) const override {
    return plan_of(p, chip, v[0]);
  }

 private:
  int usual_splits(const Problem& p, int compute_units) const {
    return choose_splits(p, groups(p), tiles_.min_split_keys, two_workgroups(compute_units));
  }
  LaunchPlan plan_of(const Problem& p, const Chip& chip, int num_splits) const {
    Specialisation s;
    s.entry = "forward/decode_portable.h";
    s.head_dim = dims(p.head_dim, p, chip);
    s.head_dim_v = dims(p.head_dim_v, p, chip);
    s.block_m = rows(p);
    s.block_n = tiles_.block_n;
    s.workgroup = tiles_.workgroup;
    s.lds_bytes = lds_bytes(p, chip);
    s.packed_rows = true;
    specialise_for(p, s);
    s.whole_rows = strides_are_whole(p);
    s.whole_dims = s.whole_bias = s.plain_scale = s.tiles_in_pages =
        false;  // nothing depends on them
    s.pair_products = multiplies_pairs(p, chip);
    s.splits = num_splits > 1;
    LaunchPlan plan = split_plan(p, chip, s, row_tiles(p), num_splits,
                                 int64_t{waves(chip)} * s.block_n * groups_of_lanes(p, chip));
    add_mask_bits(p, plan);
    return plan;
  }

  // Rows of a workgroup: queries and outputs of so many have room in registers.
  int rows(const Problem& p) const {
    const int64_t narrow = tiles_.narrow_above, dim = widest(p);
    const int most = tiles_.block_m / (dim > 2 * narrow ? 4 : dim > narrow ? 2 : 1);
    return static_cast<int>(std::min<uint64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, packed_rows(p)))), most));
  }
  static constexpr int kPieceDims = 8;
  static int64_t widest(const Problem& p) { return std::max(p.head_dim, p.head_dim_v); }
  // Lanes that have a key: a piece each of its row, or several where a wave has fewer lanes than
  // the row has pieces.
  static int lanes_of_key(const Problem& p, const Chip& chip) {
    constexpr int64_t kLeast = 64;
    const int64_t pieces = tiles_of(std::max(widest(p), kLeast), kPieceDims);
    return static_cast<int>(std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(pieces)),
                                               static_cast<uint64_t>(chip.wave_size)));
  }
  static int dims(int64_t dim, const Problem& p, const Chip& chip) {
    return static_cast<int>(round_up(dim, int64_t{kPieceDims} * lanes_of_key(p, chip)));
  }
  int waves(const Chip& chip) const { return tiles_.workgroup / chip.wave_size; }
  static int groups_of_lanes(const Problem& p, const Chip& chip) {
    return chip.wave_size / lanes_of_key(p, chip);
  }
  // Maxima and sums; outputs, or two steps' probabilities and factors of each group of lanes.
  int lds_bytes(const Problem& p, const Chip& chip) const {
    const int steps = 2 * (tiles_.block_n + 1) * groups_of_lanes(p, chip);
    return 4 * waves(chip) * rows(p) * (2 + std::max(dims(p.head_dim_v, p, chip), steps));
  }
  int64_t row_tiles(const Problem& p) const { return tiles_of(packed_rows(p), rows(p)); }
  int64_t groups(const Problem& p) const { return p.batch * p.num_kv_heads * row_tiles(p); }

  const DecodePortableTiles& tiles_;
};

}  // namespace

const Family* make_decode_portable(const Target& target) {
  return target.decode_portable ? new DecodePortable(target) : nullptr;
}

}  // namespace fulmen::gpu
