// kernels/forward/decode.h and forward/decode_combine.h: few queries, the keys split so that every compute unit has work.
#include <algorithm>

#include "gpu/launch/family.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kRows = 16;      // of a workgroup
constexpr int64_t kMostTiles = 2;  // of 16 rows a KV head: each reads all of K and V
constexpr int64_t kMinSplitKeys = 512;
constexpr int64_t kMinSplitKeysNvidia = 256;  // measured on an H200; AMD's number is a guess
constexpr int kWaves = 4;
constexpr int kManyWaves = 8;         // of a workgroup that has all keys of its rows
constexpr int kStepKeys = 16;         // of a wave: with more keys the operands in flight would spill
constexpr int64_t kMostSplits = 256;  // that are tried
constexpr int kCombineLanes = 256;

class SplitKv final : public Family {
 public:
  explicit SplitKv(const MatrixTarget& target) : target_(target) {}
  std::string_view name() const noexcept override { return "decode"; }
  std::string_view target() const noexcept override { return target_.name; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& chip) const override {
    if (Support support = takes_matrix_instructions(p); !support.yes) return support;
    const int64_t rows = p.group_size() * p.seqlen_q;
    if (rows > kMostTiles * kRows) {
      return Support::no(std::to_string(rows) + " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
                         std::to_string(kMostTiles * kRows) + " are served");
    }
    if (Support support = lds_fits(lds_bytes(head_dim_v(p), kWaves), chip); !support.yes) return support;
    // gfx11: 64-bit addresses of rows beside those of a bias, and operands twice, would spill registers.
    constexpr int64_t kMostFarDim = 96;
    if (chip.target == "gfx11" && p.bias.present && std::max(p.head_dim, p.head_dim_v) > kMostFarDim && !strides_are_whole(p)) {
      return Support::no("a bias beside rows that are not at multiples of 16 bytes is served up to head_dim " +
                         std::to_string(kMostFarDim) + ", head_dim is " + std::to_string(std::max(p.head_dim, p.head_dim_v)));
    }
    return grid_fits(groups(p) * std::max<int64_t>(1, p.seqlen_k / min_split_keys(chip)));
  }
  // Above `short` only where there are many keys.
  double rank(const Problem& p) const override { return p.seqlen_k > 128 ? 40 : 25; }

  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override {
    return plan_of(p, chip, choose_shape(p, chip, compute_units));
  }
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override {
    tuning::Space space;
    space.wave_size = chip.wave_size;
    const auto [usual_waves, usual_keys, usual] = choose_shape(p, chip, compute_units);
    const int64_t most = std::min<int64_t>(kMostSplits, p.seqlen_k / (kWaves * kStepKeys));
    std::vector<int> splits;
    for (int n = 1; n <= std::max<int64_t>(1, most); n *= 2) splits.push_back(n);
    for (const int near : {usual * 3 / 4, usual * 3 / 2}) {
      if (near >= 1 && near <= most && std::find(splits.begin(), splits.end(), near) == splits.end()) splits.push_back(near);
    }
    std::sort(splits.begin(), splits.end());
    space.parameters = {{"waves", usual_waves, {1, 2, 4, 8}}, {"block_n", usual_keys, {16, 32}}, {"num_splits", usual, splits}};
    tuning::include_usual(space);
    space.takes = [this, p, chip](std::span<const int> v) -> Support {
      const int dim = static_cast<int>(round_up(p.head_dim, target_.depth)), dim_v = head_dim_v(p);
      if (Support support = lds_fits(lds_bytes(dim_v, v[0]), chip); !support.yes) return support;
      // Queries and outputs, and a step's keys and values: 16-bit elements, which AMD's gfx11 has twice.
      const int64_t twice = chip.target == "gfx11" ? 2 : 1;
      const int64_t words = int64_t{kRows} * (dim * twice / 2 + dim_v) + int64_t{v[1]} * (kRows + (dim + dim_v) * twice / 2);
      return v[1] == kStepKeys ? Support{} : registers_fit(words / chip.wave_size, chip, v[0], 1, 1);
    };
    return space;
  }
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int /*compute_units*/, std::span<const int> v) const override {
    return plan_of(p, chip, {v[0], v[1], v[2]});
  }

 private:
  struct Shape {
    int waves, block_n, num_splits;
  };
  LaunchPlan plan_of(const Problem& p, const Chip& chip, const Shape& shape) const {
    Specialisation s;
    s.entry = "forward/decode.h";
    s.target = target_.name;
    s.head_dim = static_cast<int>(round_up(p.head_dim, target_.depth));
    s.head_dim_v = head_dim_v(p);
    s.block_m = kRows;
    s.block_n = shape.block_n;
    s.workgroup = shape.waves * chip.wave_size;
    s.packed_rows = true;
    s.lds_bytes = lds_bytes(s.head_dim_v, shape.waves);
    specialise_for(p, s);
    s.num_splits = shape.num_splits;
    LaunchPlan plan;
    plan.launches.push_back({s, groups(p) * s.num_splits});
    plan.arguments = arguments_of(p);
    plan.arguments.row_tiles = static_cast<int>(row_tiles(p));
    plan.arguments.num_splits = plan.num_splits = s.num_splits;
    plan.arguments.split_keys = round_up((p.seqlen_k + s.num_splits - 1) / s.num_splits, int64_t{shape.waves} * s.block_n);
    if (s.num_splits > 1 && plan.launches.front().workgroups > 0) add_combine(p, chip, s, plan);
    return plan;
  }
  static int head_dim_v(const Problem& p) { return static_cast<int>(round_up(p.head_dim_v, 32)); }
  static int lds_bytes(int head_dim_v, int waves) { return 4 * waves * 16 * (2 + head_dim_v + 4); }
  static int64_t row_tiles(const Problem& p) { return (p.group_size() * p.seqlen_q + kRows - 1) / kRows; }
  static int64_t groups(const Problem& p) { return p.batch * p.num_kv_heads * row_tiles(p); }

  static int64_t min_split_keys(const Chip& chip) { return chip.vendor == Vendor::nvidia ? kMinSplitKeysNvidia : kMinSplitKeys; }

  static Shape choose_shape(const Problem& p, const Chip& chip, int compute_units) {
    if (fills_unsplit(p, chip, compute_units)) return {kManyWaves, kStepKeys, 1};
    return {kWaves, kStepKeys, choose_splits(p, chip, compute_units)};
  }

  // Whether workgroups of kManyWaves with all keys fill the chip once: as many waves as with two splits, and no second kernel that
  // combines them. An H200 then takes 6 to 18 % less time (docs/lab/nvidia_forward.md).
  static bool fills_unsplit(const Problem& p, const Chip& chip, int compute_units) {
    if (chip.vendor != Vendor::nvidia || head_dim_v(p) > 128 || !lds_fits(lds_bytes(head_dim_v(p), kManyWaves), chip).yes)
      return false;
    const int64_t slots = std::max(1, compute_units) * (p.head_dim <= 64 && p.head_dim_v <= 64 ? 2 : 1);
    return groups(p) <= slots && 10 * groups(p) >= 9 * slots;
  }

  // Two workgroups a compute unit run at once. Of the numbers of splits whose last round of workgroups is fullest, the smallest.
  static int choose_splits(const Problem& p, const Chip& chip, int compute_units) {
    const int64_t most = std::max<int64_t>(1, p.seqlen_k / min_split_keys(chip)), slots = 2 * std::max(1, compute_units);
    int best = 1;
    double best_cost = 0;
    for (int64_t splits = 1; splits <= std::min<int64_t>(most, slots); ++splits) {
      const int64_t rounds = (groups(p) * splits + slots - 1) / slots;
      // In units of all keys; a split more costs as much as reading some dozen keys.
      const double cost =
          static_cast<double>(rounds) * (1.0 / static_cast<double>(splits) + 64.0 / static_cast<double>(p.seqlen_k + 1));
      if (splits == 1 || cost < 0.98 * best_cost) {
        best = static_cast<int>(splits);
        best_cost = cost;
      }
    }
    return best;
  }

  static void add_combine(const Problem& p, const Chip& chip, const Specialisation& split, LaunchPlan& plan) {
    Specialisation s = helper_kernel(split, "forward/decode_combine.h", kCombineLanes);
    s.head_dim = s.head_dim_v;
    s.lds_bytes = 4 * kCombineLanes / chip.wave_size * (2 + s.head_dim_v);
    s.whole_rows = false;  // nothing depends on it
    const int64_t rows = p.batch * p.num_heads * p.seqlen_q;
    plan.launches.push_back({s, rows});
    plan.partial_out_floats = round_up(rows * p.head_dim_v * s.num_splits, 16);
    plan.partial_row_floats = round_up(rows * s.num_splits, 16);
  }

  const MatrixTarget& target_;
};

}  // namespace

std::vector<const Family*> decode_families() {
  std::vector<const Family*> list;
  for (const MatrixTarget& target : kMatrixTargets) list.push_back(new SplitKv(target));
  return list;
}

}  // namespace fulmen::gpu
