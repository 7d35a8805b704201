// Every branch of what GPU families choose: the tiles, splits, merges, persistence and packing of a
// plan, for a problem and a number of compute units. Each kind of plan that large problems of
// models get is also the plan of a small problem in a table. The table's problems run on the
// emulated chips, and its size is checked. So a branch that no test executes is found by its kind
// of plan.
#include <algorithm>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/choice.h"
#include "gpu/device_list.h"
#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "gpu/plan_results.h"

namespace fulmen::testing {
namespace {

// The host's decisions, without what the problem fixes: dtype, dims, features.
std::string kind_of(const gpu::LaunchPlan& plan) {
  std::string text;
  for (const gpu::KernelLaunch& launch : plan.launches) {
    if (launch.workgroups == 0) continue;
    const gpu::Specialisation& s = launch.specialisation;
    text += std::string(s.entry) + " " + std::to_string(s.block_m) + "x" +
            std::to_string(s.block_n) + " by " + std::to_string(s.workgroup);
    for (const auto& [name, value] : {std::pair{" buffers", s.buffers},
                                      {" min_workgroups", s.min_workgroups},
                                      {" dim_groups", s.dim_groups},
                                      {" heads_in_row", s.heads_in_row},
                                      {" persistent", s.persistent},
                                      {" ping_pong", s.ping_pong},
                                      {" splits", s.splits},
                                      {" queries_in_lds", s.queries_in_lds},
                                      {" outputs", s.outputs}}) {
      const int usual =
          std::string_view(name) == " buffers" || std::string_view(name) == " min_workgroups" ||
          std::string_view(name) == " dim_groups" || std::string_view(name) == " heads_in_row";
      if (value != usual) text += std::string(name) + "=" + std::to_string(value);
    }
    text += launch.programmatic_launch ? " early; " : "; ";
  }
  return text;
}

struct Drawn {
  CaseSpec spec;
  Problem problem;
  int compute_units = 1;
};

// A problem with tensors of at most two elements a dim; the choice asks neither for data nor for
// strides that sizes give. It does not see the strides of dims of one element.
Problem problem_of(const CaseSpec& s) {
  static std::map<std::string, Problem> known;
  CaseSpec few = s;
  for (int64_t* size :
       {&few.batch, &few.seqlen_q, &few.seqlen_k, &few.num_heads, &few.num_kv_heads}) {
    *size = std::min<int64_t>(2, *size);
  }
  const auto [at, is_new] = known.try_emplace(to_string(few));
  if (is_new) {
    Random content(1);
    at->second = Case(few, content).problem();
  }
  Problem p = at->second;
  p.batch = s.batch;
  p.seqlen_q = s.seqlen_q;
  p.seqlen_k = p.padded_k = s.seqlen_k;
  p.num_heads = s.num_heads;
  p.num_kv_heads = s.num_kv_heads;
  p.diagonal = s.seqlen_k - s.seqlen_q;
  return p;
}

// small: what an emulated chip computes in a second or two.
Drawn draw(std::mt19937_64& random, bool small) {
  const auto of = [&](const std::vector<int64_t>& list) { return list[random() % list.size()]; };
  const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
  Drawn d;
  CaseSpec& s = d.spec;
  s.dtype = chance(85) ? DType::bf16 : DType::fp32;
  s.head_dim = s.head_dim_v = of({32, 64, 80, 96, 128, 192, 256});
  s.backward = chance(25);
  s.causal = chance(50) ? Causal::bottom_right : Causal::none;
  if (chance(15)) s.window_left = 300;
  s.bias = chance(10);
  s.bias_dtype = s.dtype;
  if (s.backward && chance(70)) s.gradients[3] = false;
  s.layout = chance(85) ? Layout::bshd : Layout::odd_strides;
  s.seqlen_q = small ? of({1, 2, 4, 8, 16, 32, 33, 64, 65, 100, 130, 256, 300})
                     : of({1, 4, 16, 32, 64, 100, 256, 1000, 4096, 16384});
  s.seqlen_k = small ? of({32, 64, 65, 100, 128, 130, 200, 300, 600, 1100, 2300, 4200, 8200})
                     : of({64, 100, 256, 1000, 4096, 16384, 65536});
  if (s.backward && chance(70)) s.seqlen_k = s.seqlen_q;
  s.batch = small ? of({1, 1, 2, 5, 16, 40}) : of({1, 2, 8, 32, 128});
  s.num_kv_heads = small ? of({1, 2, 4}) : of({1, 2, 8, 32});
  s.num_heads = s.num_kv_heads * of({1, 1, 2, 4, 8});
  d.compute_units =
      static_cast<int>(small ? of({1, 2, 4, 16, 60, 132, 304}) : of({4, 16, 60, 132, 304}));
  if (s.backward && s.bias) {  // a dim of one element would be a sum
    s.batch = std::max<int64_t>(2, s.batch);
    s.seqlen_q = std::max<int64_t>(2, s.seqlen_q);
    if (s.num_heads == 1) s.num_heads = s.num_kv_heads = 2;
  }
  d.problem = problem_of(s);
  return d;
}

// Decode of latent attention.
Drawn draw_latent(std::mt19937_64& random, bool small) {
  const auto of = [&](const std::vector<int64_t>& list) { return list[random() % list.size()]; };
  Drawn d;
  CaseSpec& s = d.spec;
  s.dtype = DType::bf16;
  s.head_dim = 576;
  s.head_dim_v = 512;
  s.values_in_keys = true;
  s.seqlen_q = of({1, 1, 2, 4});
  s.seqlen_k = small ? of({70, 200, 600, 1100, 2400, 5000}) : of({1000, 4096, 16384, 65536});
  s.batch = small ? of({1, 2, 5}) : of({1, 8, 64, 128});
  s.num_heads = small ? of({4, 16, 40}) : of({16, 32, 64, 128});
  d.compute_units = static_cast<int>(small ? of({1, 2, 4, 16, 132, 304}) : of({60, 132, 304}));
  d.problem = problem_of(s);
  return d;
}

// For each kind of plan, "decode.sm80: ...", the problem with least work that gets it. won: the
// ranks of families that were best.
using Kinds = std::map<std::string, Drawn>;
Kinds kinds_of(const gpu::Chip& chip, bool small, int draws,
               std::set<std::pair<std::string, double>>* won = nullptr) {
  Kinds kinds;
  std::mt19937_64 random(small ? 1 : 2);  // the same in every run: what the table has is held
  const auto add = [&](const Drawn& drawn) {
    const Problem& p = drawn.problem;
    std::pair<std::string, double> best{"", -1};
    for (const gpu::Family* family : gpu::families()) {
      if (!chip.runs(family->target()) || family->pass() != p.pass || !family->serves(p, chip).yes)
        continue;
      const std::string name(family->name());
      if (const double rank = gpu::rank(*family, p); rank > best.second) best = {name, rank};
      const std::string kind = name + "." + std::string(family->target().name) + ": " +
                               kind_of(family->plan(p, chip, drawn.compute_units));
      const auto [at, is_new] = kinds.emplace(kind, drawn);
      if (!is_new && p.flops() < at->second.problem.flops()) at->second = drawn;
    }
    if (won != nullptr) won->insert(best);
  };
  for (int n = 0; n < draws; ++n) {
    Drawn drawn = draw(random, small);
    add(drawn);
    if (drawn.spec.backward || drawn.spec.dtype == DType::fp32) continue;
    drawn.spec.precision = drawn.problem.precision = Precision::int8;
    add(drawn);
  }
  for (int n = 0; n < 400; ++n) add(draw_latent(random, small));
  return kinds;
}

// Kinds of plans of each family of a chip. Another number is another branch, or one less: the test
// below runs them.
using Counts = std::map<std::string, int>;
struct ChipBranches {
  const char* chip;
  int draws;
  Counts counts;

  friend void PrintTo(const ChipBranches& one, std::ostream* to) { *to << one.chip; }
};
const std::vector<ChipBranches>& chip_branches() {
  static const auto* const kAll = new std::vector<ChipBranches>{
      {"gfx1100",
       20000,
       {{"backward.gfx11", 20},
        {"backward.portable", 6},
        {"backward_fp32.gfx11", 2},
        {"decode.gfx11", 11},
        {"decode.portable", 16},
        {"prefill.gfx11", 4},
        {"prefill.portable", 3},
        {"prefill_fp32.gfx11", 2},
        {"prefill_int8.gfx11", 3},
        {"short.gfx11", 28},
        {"short_backward.gfx11", 6}}},
      {"gfx1201",
       20000,
       {{"backward.gfx12", 26},
        {"backward.portable", 6},
        {"backward_fp32.gfx12", 2},
        {"decode.gfx12", 11},
        {"decode.portable", 16},
        {"prefill.gfx12", 4},
        {"prefill.portable", 3},
        {"prefill_fp32.gfx12", 2},
        {"prefill_int8.gfx12", 3},
        {"short.gfx12", 28},
        {"short_backward.gfx12", 6}}},
      {"gfx942",
       20000,
       {{"backward.cdna3", 14},
        {"backward.portable", 6},
        {"backward_fp32.cdna3", 4},
        {"decode.cdna3", 12},
        {"decode.portable", 20},
        {"decode_latent.cdna3", 6},
        {"prefill.cdna3", 5},
        {"prefill.portable", 3},
        {"prefill_fp32.cdna3", 3},
        {"prefill_int8.cdna3", 3},
        {"short.cdna3", 28},
        {"short_backward.cdna3", 7}}},
      {"gfx950",
       20000,
       {{"backward.cdna4", 12},
        {"backward.portable", 6},
        {"backward_fp32.cdna4", 4},
        {"decode.cdna4", 12},
        {"decode.portable", 20},
        {"decode_latent.cdna4", 6},
        {"prefill.cdna4", 3},
        {"prefill.portable", 3},
        {"prefill_fp32.cdna4", 3},
        {"prefill_int8.cdna4", 2},
        {"short.cdna4", 28},
        {"short_backward.cdna4", 12}}},
      {"sm_80",
       60000,
       {{"backward.portable", 6},
        {"backward.sm80", 26},
        {"backward_atomic.sm80", 19},
        {"backward_fp32.sm80", 12},
        {"boards.sm80", 4},
        {"decode.portable", 16},
        {"decode.sm80", 9},
        {"prefill.portable", 3},
        {"prefill.sm80", 11},
        {"prefill_fp32.sm80", 3},
        {"prefill_int8.sm80", 3},
        {"short.sm80", 30},
        {"short_backward.sm80", 22}}},
      {"sm_90a",
       60000,
       {{"backward.portable", 6},
        {"backward.sm80", 26},
        {"backward_atomic.sm80", 17},
        {"backward_fp32.sm80", 9},
        {"backward_tma.sm90", 12},
        {"backward_wgmma.sm90", 26},
        {"backward_wgmma_atomic.sm90", 14},
        {"boards.sm80", 4},
        {"decode.portable", 16},
        {"decode.sm80", 9},
        {"decode_latent.sm90", 3},
        {"decode_tma.sm90", 16},
        {"prefill.portable", 3},
        {"prefill.sm80", 10},
        {"prefill_fp32.sm80", 3},
        {"prefill_int8.sm80", 3},
        {"prefill_tma.sm90", 39},
        {"prefill_wgmma.sm90", 4},
        {"short.sm80", 30},
        {"short_backward.sm80", 22}}},
  };
  return *kAll;
}

gpu::Chip chip_of(const std::string& name) {
  static std::map<std::string, std::string> storage;
  gpu::Chip chip{};
  EXPECT_TRUE(gpu::find_chip(name, storage[name], chip)) << name;
  return chip;
}
std::string family_of(const std::string& kind) { return kind.substr(0, kind.find(':')); }

class ChoiceBranches : public ::testing::TestWithParam<ChipBranches> {};

TEST_P(ChoiceBranches, AreAllOfSmallProblems) {
  constexpr int kModels = 6000;
  const gpu::Chip chip = chip_of(GetParam().chip);
  const Kinds table = kinds_of(chip, true, GetParam().draws);
  Counts counts;
  for (const auto& [kind, drawn] : table) ++counts[family_of(kind)];
  EXPECT_EQ(counts, GetParam().counts);
  for (const auto& [kind, drawn] : kinds_of(chip, false, kModels)) {
    EXPECT_TRUE(table.contains(kind))
        << "no small problem is given this plan: " << kind << "\n  of " << to_string(drawn.problem)
        << ", " << drawn.compute_units << " compute units";
  }
}

// On an emulated device that has as many compute units as the branch wants.
TEST_P(ChoiceBranches, GiveRightResults) {
  constexpr double kMostFlops = 2e8;  // of an emulated chip in a test that is run each time
  constexpr std::size_t kRuns = 2;
  constexpr int kSomeDraws = 5000;
  const std::string name = std::string("emulated:") + GetParam().chip;
  const gpu::Device* const device = gpu::DeviceList(gpu::emulated_driver()).find(name);
  ASSERT_NE(device, nullptr) << name;
  std::vector<std::pair<std::string, Drawn>> all;
  for (const auto& [kind, drawn] :
       kinds_of(device->chip, true, long_run() ? GetParam().draws : kSomeDraws)) {
    if (long_run() || drawn.problem.flops() <= kMostFlops) all.emplace_back(kind, drawn);
  }
  Random random(9500);
  for (const auto& [kind, drawn] : random.sample(all, kRuns)) {
    Case c(drawn.spec, random);
    const Problem p = c.problem();
    for (const gpu::Family* family : gpu::families()) {
      if (std::string(family->name()) + "." + std::string(family->target().name) != family_of(kind))
        continue;
      gpu::LaunchPlan plan = family->plan(p, device->chip, drawn.compute_units);
      EXPECT_EQ(family_of(kind) + ": " + kind_of(plan), kind) << to_string(drawn.spec);
      EXPECT_TRUE(plan_gives_right_results(c, name, std::move(plan)))
          << kind << "\n  " << to_string(drawn.spec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ChoiceBranches, ::testing::ValuesIn(chip_branches()),
                         [](const auto& info) { return std::string(info.param.chip); });

// Each row of the order of preference is the best for some problem on some chip, except places
// behind a family that takes the same problems: such a family runs when it is forced, or as the
// next one where a kernel is refused. Packed sequences, of which prefill_tma has a row, are not
// drawn.
TEST(ChoiceOfFamilies, EachRowIsTakenOrIsAPlaceBehindAnother) {
  using Place = std::pair<std::string, double>;
  std::set<Place> won, rows;
  for (const ChipBranches& one : chip_branches()) kinds_of(chip_of(one.chip), true, 5000, &won);
  kinds_of(chip_of("sm_75"), true, 5000, &won);
  for (const gpu::Preference& row : gpu::preferences()) rows.emplace(row.family, row.rank);
  std::set<Place> behind;
  for (const Place& row : rows) {
    if (!won.contains(row)) behind.insert(row);
  }
  EXPECT_EQ(behind, (std::set<Place>{{"prefill_tma", 31},
                                     {"prefill_wgmma", 19},
                                     {"short", 18},
                                     {"prefill_tma", 17},
                                     {"decode_tma", 16},
                                     {"prefill_fp8", 15},
                                     {"prefill_e4m3", 15},
                                     {"backward_wgmma_atomic", 21},
                                     {"backward_atomic", 18},
                                     {"backward_wgmma_atomic", 17},
                                     {"backward_wgmma", 16},
                                     {"backward_tma", 15}}));
}

}  // namespace
}  // namespace fulmen::testing
