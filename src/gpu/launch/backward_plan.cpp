#include <algorithm>

#include "gpu/launch/backward.h"
#include "gpu/launch/tensor_gradients.h"

namespace fulmen::gpu {
namespace {

constexpr int kHelperLanes = 128;
constexpr int kStatisticsLanes = 8;                  // kernels/backward/parts/row_statistics.h
constexpr int64_t kLanesOfSum = 4, kWidthOfSum = 4;  // kernels/backward/parts/bias_sum.h
constexpr int64_t kFewParts = 8;
constexpr int kSinkLanes = 256;
// Batches: longer ones lose by an early start (docs/lab/nvidia_boards.md).
constexpr int64_t kShortRun = 4;
constexpr int64_t kLaneDims = 4;     // kernels/backward/parts/key_sums.h
constexpr int64_t kDirectDims = 32;  // kernels/tile/direct.h: what dims are rounded up to

// How many scores an element of dbias is the sum of, in terms of tiles.
struct BiasSums {
  int64_t batches, heads, row_tiles;  // of dbias
  int64_t terms;
  bool over_queries;

  BiasSums(const Problem& p, int block_m) {
    over_queries = p.dbias.strides[2] == 0;
    const int64_t tiles = tiles_of(p.seqlen_q, block_m);
    batches = p.dbias.strides[0] == 0 ? 1 : p.batch;
    heads = p.dbias.strides[1] == 0 ? 1 : p.num_heads;
    row_tiles = over_queries ? 1 : tiles;
    terms = p.batch * p.num_heads * tiles / (batches * heads * row_tiles);
  }
};

// How many queries a split has for dk and dv: all of them, unless blocks of keys leave half of the
// chip without work.
int64_t split_queries(const Problem& p, const Specialisation& s, int compute_units) {
  constexpr int64_t kLeastTiles = 4;  // of a split: its start and its sums take as long as one
  const int64_t blocks = tiles_of(p.seqlen_k, s.block_m) * p.batch * p.num_kv_heads,
                slots = int64_t{s.min_workgroups} * compute_units;
  const int64_t tiles = tiles_of(p.seqlen_q, s.block_n);
  if (p.variable_lengths() || blocks == 0 || 2 * blocks > slots) return p.seqlen_q;
  const int64_t least = tiles_of(kLeastTiles, p.group_size());
  return std::max(least, tiles_of(tiles, slots / blocks)) * s.block_n;
}

// Whether rounded rows have a launch of matrix instructions.
bool multiplies_rounded_rows(const Problem& p, const Specialisation& products) {
  constexpr int64_t kMostDims = 256;  // more than registers hold
  return products.target != nullptr && p.dtype != DType::fp32 && p.head_dim <= kMostDims;
}

int64_t bias_part_floats(const Problem& p, const BiasSums& sums, int block_m) {
  return sums.batches * sums.heads * (sums.over_queries ? block_m : p.seqlen_q) * p.seqlen_k;
}

}  // namespace

BackwardPlan::BackwardPlan(const Problem& problem, int compute_units)
    : p_(problem), compute_units_(std::max(1, compute_units)) {
  plan_.arguments = arguments_of(problem);
}

void BackwardPlan::add_row_statistics(const Specialisation& products) {
  const Problem::Shape rows = p_.lse_shape();
  plan_.row_statistics_floats = round_up(2 * rows[0] * rows[1] * rows[2], 16);
  Specialisation s = helper_kernel(products, "backward/parts/row_statistics.h", kHelperLanes);
  // Nothing depends on the products' tiles.
  constexpr int64_t kRows = kHelperLanes / kStatisticsLanes;
  s.block_m = s.block_n = kRows;
  // The TMA's families have long heads: a workgroup's rows are one head's, several of each 8 lanes.
  // Packed sequences have more of them, for there many a workgroup finds no rows. Workgroups a
  // multiprocessor are those that registers suffice for.
  const bool of_one_head = products.tensor_maps != 0 && !natural_units(p_);
  if (of_one_head) {
    s.block_n = static_cast<int>((p_.variable_lengths() ? 4 : 2) * kRows);
    s.min_workgroups = p_.variable_lengths() ? 7 : 10;
  }
  if (natural_units(p_)) {  // what a rounded row's scores are made of
    plan_.row_share_floats = round_up(rows[0] * rows[1] * rows[2], 16);
    s.bias = products.bias;
    // As bytes: few rows look. What functions make is there as bits alone.
    s.keep_mask = products.keep_mask == 0 || has_mask_parts(p_) ? products.keep_mask : kMaskAsBytes;
    s.score_mod = products.score_mod;
    s.functions = products.functions;
    s.alibi = products.alibi;
    s.softcap = products.softcap;
    s.band = products.band;
    s.rounded_apart = multiplies_rounded_rows(p_, products);
  }
  plan_.launches.push_back({s, of_one_head
                                   ? p_.batch * p_.num_heads * tiles_of(p_.seqlen_q, s.block_n)
                                   : tiles_of(p_.batch * p_.num_heads * p_.seqlen_q, kRows)});
  if (s.rounded_apart != 0) add_rounded_rows(products, s);
}

// statistics: of the rows, whose scores it has, too.
void BackwardPlan::add_rounded_rows(const Specialisation& products,
                                    const Specialisation& statistics) {
  Specialisation s = statistics;
  s.entry = "backward/rounded_rows.h";
  s.target = products.target;
  s.head_dim = s.head_dim_v = static_cast<int>(round_up(p_.head_dim, kDirectDims));
  s.exact_dims = p_.head_dim == s.head_dim;
  s.whole_dims = products.whole_dims;
  s.whole_bias = products.whole_bias;
  // Two tiles of rows a wave read keys half as often; AMD's registers hold one.
  s.block_m = products.target->vendor == Vendor::nvidia && s.head_dim <= 128 ? 128 : 64;
  s.block_n = 64;
  plan_.launches.push_back({s, tiles_of(p_.seqlen_q, s.block_m) * p_.batch * p_.num_heads});
}

void BackwardPlan::add_rows(Specialisation s, int outputs) {
  s.outputs = outputs | (s.outputs & kStoresDbias);
  if (outputs == 0) return;
  const bool rows_are_keys = (outputs & kGivesDq) == 0;
  const int64_t tiles = tiles_of(rows_are_keys ? p_.seqlen_k : p_.seqlen_q, s.block_m);
  plan_.launches.push_back(
      {s, tiles * p_.batch * (rows_are_keys ? p_.num_kv_heads : p_.num_heads)});
}

void BackwardPlan::add_keys(Specialisation s, int outputs) {
  const int64_t queries = split_queries(p_, s, compute_units_);
  if (queries >= p_.seqlen_q) return add_rows(s, outputs);
  s.splits = 1;
  add_rows(s, outputs);
  const int64_t splits = tiles_of(p_.seqlen_q, queries);
  plan_.launches.back().workgroups *= splits;
  plan_.arguments.split_keys = queries;
  plan_.arguments.num_splits = plan_.num_splits = static_cast<int>(splits);
  const int64_t floats = p_.batch * p_.num_kv_heads * p_.seqlen_k *
                         (((outputs & kGivesDk) != 0 ? s.head_dim : 0) +
                          ((outputs & kGivesDv) != 0 ? s.head_dim_v : 0));
  plan_.partial_out_floats = std::max(plan_.partial_out_floats, round_up(splits * floats, 16));
  Specialisation sums = helper_kernel(s, "backward/parts/key_sums.h", kHelperLanes);
  sums.target = s.target;  // tile/rows.h has matrix operands, too
  sums.outputs = outputs;
  sums.exact_dims = s.exact_dims;
  plan_.launches.push_back({sums, tiles_of(floats, kLaneDims * kHelperLanes), true});
}

void BackwardPlan::add_with_query_sums(const Specialisation& s, int64_t workgroups) {
  constexpr int kSumRows = 16;  // of a tile of sums: kernels/backward/parts/query_sums.h
  if (workgroups == 0) workgroups = tiles_of(p_.seqlen_k, s.block_m) * p_.batch * p_.num_kv_heads;
  plan_.launches.push_back({s, workgroups});
  // Packed sequences begin with tiles of their own.
  const int64_t tiles =
      p_.packed_q() ? p_.total_q / kSumRows + p_.batch : p_.batch * tiles_of(p_.seqlen_q, kSumRows);
  plan_.query_sum_floats = tiles * p_.num_heads * kSumRows * s.head_dim;
  Specialisation sums = helper_kernel(s, "backward/parts/dq.h", kHelperLanes);
  sums.target = s.target;  // whose tiles the sums have
  sums.exact_dims = s.exact_dims;
  constexpr int kWaves = kHelperLanes / 32;
  plan_.launches.push_back(
      {sums, tiles_of(p_.batch * p_.num_heads * tiles_of(p_.seqlen_q, kSumRows), kWaves)});
}

void BackwardPlan::add_block_table(int block_keys) {
  if (!p_.variable_lengths()) return;
  // Each sequence takes 12 bytes; more than these are taken in turn.
  constexpr int kTableLds = 12 * 512;
  constexpr int64_t kHeaderWords = 4, kRunWords = 12, kRunsOfSequence = 2;
  KernelLaunch& statistics = plan_.launches.front();
  statistics.specialisation.block_table = block_keys;
  statistics.specialisation.lds_bytes = kTableLds;
  ++statistics.workgroups;
  plan_.query_sum_floats += kHeaderWords + kRunsOfSequence * p_.batch * kRunWords;
}

void BackwardPlan::add_counters(int64_t count) {
  constexpr int64_t kPiece = 4;  // of what the row statistics' launch clears
  plan_.backward.query_counters = round_up(count, kPiece);
  plan_.query_sum_floats += plan_.backward.query_counters;
}

void BackwardPlan::add_bias(Specialisation s, int outputs) {
  if (!p_.dbias.present || p_.batch == 0 || p_.seqlen_q == 0 || clears_stored_bias()) return;
  s.outputs = outputs;
  s.bias_gradient = static_cast<int>(p_.dbias.dtype);
  const BiasSums sums(p_, s.block_m);
  const int64_t tiles =
      sums.batches * sums.heads * sums.row_tiles * tiles_of(p_.seqlen_k, s.block_n);
  const int64_t elements = bias_part_floats(p_, sums, s.block_m);
  // Not more memory than 64 MiB, or 4 times dbias's.
  constexpr int64_t kFewTerms = 4, kMostFloats = int64_t{1} << 24, kMostParts = int64_t{1} << 20;
  const int64_t room = std::max(kMostFloats / std::max<int64_t>(elements, 1), int64_t{4});
  int64_t parts = 1;
  if (outputs == kGivesDbias && s.target != nullptr) {
    const int64_t slots = int64_t{std::max(1, s.min_workgroups)} * compute_units_;
    parts = bias_gradient_parts(tiles, sums.terms, std::min(room, kMostParts), slots);
  } else {  // enough workgroups for every compute unit, each with a few terms
    const int64_t wanted = tiles_of(int64_t{4} * compute_units_, std::max<int64_t>(tiles, 1));
    parts = std::clamp(std::min({wanted, sums.terms / kFewTerms, room}), int64_t{1}, kMostParts);
  }
  plan_.launches.push_back({s, tiles * parts});
  add_bias_sum(s, parts);
}

void BackwardPlan::add_bias(const Target& target, const Chip& chip) {
  if (p_.dbias.present) add_bias(bias_gradient_kernel(p_, target, chip), kGivesDbias);
}

// Returns false if no launch so far stores dbias.
bool BackwardPlan::clears_stored_bias() {
  const auto stores =
      std::find_if(plan_.launches.begin(), plan_.launches.end(), [](const KernelLaunch& launch) {
        return (launch.specialisation.outputs & kStoresDbias) != 0;
      });
  if (stores == plan_.launches.end()) return false;
  if (!has_band(p_) && !has_masks(p_)) return true;
  Specialisation s =
      helper_kernel(stores->specialisation, "backward/parts/clear_bias.h", kHelperLanes);
  s.whole_bias = stores->specialisation.whole_bias;
  plan_.launches.insert(stores, {s, p_.batch * p_.num_heads * p_.seqlen_q});
  return true;
}

void BackwardPlan::add_bias_sum(const Specialisation& s, int64_t parts) {
  plan_.backward.bias_parts = static_cast<int>(parts);
  const BiasSums sums(p_, s.block_m);
  if (parts == 1 && !sums.over_queries) return;
  plan_.bias_partial_floats = round_up(parts * bias_part_floats(p_, sums, s.block_m), 16);
  const int64_t rows = sums.over_queries ? 1 : p_.seqlen_q;
  // Few parts are in flight at once without more lanes. Of a sum over queries each row is a part.
  const bool few = parts <= kFewParts && !sums.over_queries;
  const bool by_four = s.whole_tiles != 0 || p_.seqlen_k % kWidthOfSum == 0;
  const int64_t lanes = few ? 1 : kLanesOfSum,
                elements = kHelperLanes / lanes * (by_four ? kWidthOfSum : 1);
  Specialisation sum = helper_kernel(s, "backward/parts/bias_sum.h", kHelperLanes);
  sum.whole_tiles = s.whole_tiles;
  sum.whole_bias = by_four;
  sum.lds_bytes =
      few ? 0 : static_cast<int>(static_cast<int64_t>(sizeof(float)) * lanes * elements);
  plan_.launches.push_back(
      {sum, tiles_of(sums.batches * sums.heads * rows * p_.seqlen_k, elements), true});
}

void BackwardPlan::add_runs(Specialisation s, int64_t run_batches) {
  const int64_t runs = (p_.batch + run_batches - 1) / run_batches;
  plan_.backward.run_batches = static_cast<int>(run_batches);
  if (p_.dbias.present) s.bias_gradient = static_cast<int>(p_.dbias.dtype);
  plan_.launches.push_back({s, runs * p_.num_heads, run_batches <= kShortRun});
  if (!p_.dbias.present) return;
  // A part a run, and a head, that dbias is summed over.
  const BiasSums sums(p_, s.block_m);
  add_bias_sum(s, (sums.batches == 1 ? runs : 1) * (sums.heads == 1 ? p_.num_heads : 1));
}

void BackwardPlan::add_sinks(const Specialisation& products) {
  if (!p_.dsinks.present) return;
  Specialisation s = helper_kernel(products, "backward/parts/sinks.h", kSinkLanes);
  s.block_m = s.block_n = 16;
  s.lds_bytes = static_cast<int>(sizeof(float)) * kSinkLanes;
  if (natural_units(p_)) {
    s.bias = products.bias;
    s.score_mod = products.score_mod;
  }
  plan_.launches.push_back({s, p_.num_heads});
}

void store_bias(const Problem& p, Specialisation& s) {
  constexpr int64_t kNeighbours = 8;  // keys of a row that are there or not together
  if (!p.dbias.present || p.softcap > 0 || has_score_mod(p) || p.variable_lengths()) return;
  const bool is_sum = (p.dbias.strides[0] == 0 && p.batch != 1) ||
                      (p.dbias.strides[1] == 0 && p.num_heads != 1) || p.dbias.strides[2] == 0;
  if (is_sum) return;
  s.outputs |= kStoresDbias;
  s.bias_gradient = static_cast<int>(p.dbias.dtype);
  for (int d = 0; d < 3; ++d) {
    if (p.dbias.strides[d] % kNeighbours != 0) s.whole_bias = 0;
  }
}

void set_shape(const BackwardShape& shape, const Chip& chip, Specialisation& s) {
  s.block_m = shape.block_m;
  s.block_n = shape.block_n;
  s.workgroup = shape.waves * chip.wave_size;
  s.buffers = shape.buffers;
  s.dim_groups = shape.dim_groups;
  s.queries_in_lds = shape.rows_in_lds;
  s.direct_rows = shape.direct_rows;
  s.early_loads = !shape.late;
  s.min_waves = shape.min_waves;
  s.min_workgroups = shape.min_workgroups;
}

int outputs_of(const Problem& p) {
  return (p.dq.present ? kGivesDq : 0) | (p.dk.present ? kGivesDk : 0) |
         (p.dv.present ? kGivesDv : 0);
}

Support AtomicFamily::supports(const Problem& p, const Chip& chip) const {
  if (Support support = takes_matrix_instructions(p); !support.yes) return support;
  if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
  if (has_score_mod(p)) return Support::no("it has no derivatives of score_mod, mask_mod alone");
  if (has_tensor_gradients(p)) return Support::no("it gives no gradients of functions' tensors");
  if (!p.dq.present || !(p.dk.present || p.dv.present))
    return Support::no("dq alone, and dk and dv without it, need no atomics");
  if (Support support = lds_fits(specialisation(p, chip).lds_bytes, chip); !support.yes)
    return support;
  return grid_fits(tiles_of(std::max(p.seqlen_q, p.seqlen_k), 16) * p.batch * p.num_heads);
}

namespace {

LaunchPlan plan_with_atomics(const Problem& p, const Specialisation& s, const Chip& chip,
                             int compute_units) {
  BackwardPlan plan(p, compute_units);
  plan.add_row_statistics(s);
  plan.add_with_query_sums(s);
  plan.add_bias(*s.target, chip);
  plan.add_sinks(s);
  return plan.take();
}

}  // namespace

LaunchPlan AtomicFamily::plan(const Problem& p, const Chip& chip, int compute_units) const {
  return plan_with_atomics(p, specialisation(p, chip), chip, compute_units);
}

tuning::Space AtomicFamily::space(const Problem& p, const Chip& chip, int /*compute_units*/) const {
  const Specialisation usual = specialisation(p, chip);
  tuning::Space space;
  space.wave_size = chip.wave_size;
  space.parameters = {{"buffers", usual.buffers, buffer_counts(usual)},
                      {"min_workgroups", usual.min_workgroups, {1, 2, 3}}};
  tuning::include_usual(space);
  space.takes = [this, chip, usual](std::span<const int> v) -> Support {
    if (v[0] == usual.buffers && v[1] == usual.min_workgroups) return {};
    const Specialisation s = with(usual, v);
    if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
      return support;
    // Sums of dk and dv, and two tiles of scores as operands, of half the size.
    const int64_t each = int64_t{s.block_m} * (s.head_dim + s.head_dim_v + s.block_n);
    return registers_fit(each / s.workgroup, chip, s.workgroup / chip.wave_size, s.min_waves,
                         s.min_workgroups);
  };
  return space;
}

LaunchPlan AtomicFamily::tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                                    std::span<const int> v) const {
  return plan_with_atomics(p, with(specialisation(p, chip), v), chip, compute_units);
}

Specialisation AtomicFamily::with(Specialisation s, std::span<const int> v) const {
  s.buffers = v[0];
  s.min_workgroups = v[1];
  s.lds_bytes = lds_bytes(s);
  return s;
}

}  // namespace fulmen::gpu
