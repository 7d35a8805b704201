// Few queries whose keys the TMA loads, on the one emulated chip that has it, and on the machine's
// GPU where it is a Hopper.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuDecodeTma : public HopperTest {
 protected:
  GpuDecodeTma() : HopperTest("decode_tma", false) {}
  CaseSpec few(DType dtype, int64_t dim, int64_t queries, int64_t keys, Random& random) const {
    CaseSpec s = spec_of(dtype, dim, queries, keys, random);
    s.num_heads = 4;
    s.num_kv_heads = random.pick({1, 2});
    return s;
  }
  // Two KV heads that are neighbours in memory.
  CaseSpec few_of_heads(Random& random) const {
    CaseSpec s = few(DType::bf16, 64, 1, random.between(520, 900), random);
    s.num_kv_heads = s.num_heads = 2;
    return s;
  }
};

// Dims of one to four panels, and parts of them; one split and several; one tile of rows and two.
TEST_P(GpuDecodeTma, ShapesAndLayouts) {
  Random random(9000);
  for (const int64_t dim : {16, 64, 80, 128, 216, 256}) {
    CaseSpec s = few(dim % 128 == 0 ? DType::fp16 : DType::bf16, dim, random.between(1, 4),
                     random.between(300, 900), random);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  check(few(DType::bf16, 64, 1, random.between(1, 70), random), random);
  check(few(DType::bf16, 128, 30, 600, random), random);
}

// Queries that attend different keys; keys that none attends are NaN.
TEST_P(GpuDecodeTma, Bands) {
  Random random(9010);
  CaseSpec s = few(DType::bf16, 64, 7, 530, random);
  s.nan_in_masked = true;
  s.causal = Causal::bottom_right;
  check(s, random);
  s.window_left = random.between(0, 150);
  check(s, random);
  s.causal = Causal::top_left;
  check(s, random);
}

TEST_P(GpuDecodeTma, Features) {
  Random random(9020);
  CaseSpec s = few(DType::fp16, 40, 3, 300, random);
  s.head_dim_v = 72;
  s.softcap = 20;
  s.sinks = true;
  check(s, random);
  s = few(DType::bf16, 128, 2, 600, random);
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.causal = Causal::bottom_right;
  check(s, random);
  check(s, random, 1);  // tensors at no multiple of 16 bytes: decode's code
}

// A cache that is partly filled, with NaN behind; pages of fewer rows than a tile, and of more.
TEST_P(GpuDecodeTma, Caches) {
  Random random(9030);
  for (const int64_t page : {0, 16, 128}) {
    CaseSpec s = few(DType::bf16, page == 16 ? 128 : 64, 2, 500, random);
    s.batch = 3;
    s.used_k = true;
    s.page_size = page;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = true;
    check(s, random);
  }
}

// Masks that all heads share: paddings, documents of which whole tiles and whole splits are hidden,
// masks of each query, none at all. What no query attends is NaN.
TEST_P(GpuDecodeTma, Masks) {
  Random random(9035);
  const auto check_masked = [&](const CaseSpec& spec, int splits, const char* more = "") {
    if (!drawn(4)) return;
    Case c(spec, random);
    c.options.tuning = "num_splits=" + std::to_string(splits) + more;
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(spec);
  };
  for (const KeepPattern pattern :
       {KeepPattern::rows, KeepPattern::blocks, KeepPattern::left_padding,
        KeepPattern::right_padding, KeepPattern::one_key, KeepPattern::nothing}) {
    CaseSpec s = few(random.pick({DType::bf16, DType::fp16}), random.pick({64, 128, 256}),
                     random.between(1, 7), random.between(768, 900), random);
    s.batch = 2;
    s.keep = s.nan_in_masked = true;
    s.keep_pattern = pattern;
    s.keep_broadcast = {random.chance(0.3), true, random.chance(0.5)};
    check_masked(s, 1);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.window_left = random.chance(0.5) ? random.between(0, 400) : -1;
    check_masked(s, 2);
    s.used_k = true;
    s.page_size = random.pick({0, 16, 128});
    check_masked(s, 2);
  }
  CaseSpec s = few(DType::bf16, 128, 2, random.between(2300, 2600), random);
  s.keep = s.nan_in_masked = true;
  s.keep_documents = random.between(300, 1100);  // of more tiles than a wave looks at at once
  s.keep_broadcast = {true, true, false};
  check_masked(s, 1);
  check_masked(s, 4);
  s = few(DType::bf16, 128, random.between(17, 32), 600, random);  // two tiles of rows
  s.num_kv_heads = 1;
  s.keep = s.nan_in_masked = true;
  s.keep_pattern = KeepPattern::blocks;
  s.keep_broadcast = {false, true, false};
  check_masked(s, 2);
  s = few_of_heads(random);
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {false, true, random.chance(0.5)};
  check_masked(s, 2, ",heads_in_row=2");
  s.num_heads = s.num_kv_heads = 3;
  s.keep_broadcast = {false, false, false};  // a head's own, beside a KV head of its own
  check_masked(s, 2);
}

// Two KV heads of 64 dims that are neighbours in memory come as one row: rows that fill one wave of
// a head, or both; features by head; splits and none; caches and pages.
TEST_P(GpuDecodeTma, NeighbouringHeads) {
  Random random(9050);
  const auto check_two = [&](const CaseSpec& spec, int splits, std::size_t shift = 0) {
    if (!drawn(3)) return;
    Case c(spec, random);
    c.options.tuning = "heads_in_row=2,num_splits=" + std::to_string(splits);
    EXPECT_TRUE(verified(c, kernel(), {device(), shift})) << to_string(spec);
  };
  for (const auto& [group, queries] :
       {std::pair<int64_t, int64_t>{1, 1}, {4, 4}, {1, 17}, {8, 4}}) {
    CaseSpec s =
        few(random.pick({DType::bf16, DType::fp16}), 64, queries, random.between(520, 900), random);
    s.num_kv_heads = random.pick({2, 4});
    s.num_heads = s.num_kv_heads * group;
    s.layout = random.pick({Layout::bshd, Layout::sbhd});
    check_two(s, 1);
    s.causal = Causal::bottom_right;
    s.window_left = group == 1 ? random.between(0, 300) : -1;
    s.bias = s.sinks = group == 4;
    s.alibi = group == 4 ? 2 : 0;
    s.softcap = group == 8 ? 20.0F : 0.0F;
    check_two(s, 2);
    s.used_k = true;
    s.nan_in_masked = true;
    s.page_size = random.pick({0, 16, 128});
    s.batch = 2;
    check_two(s, 2);
  }
  check_two(few_of_heads(random), 2, 1);  // tensors at no multiple of 16 bytes: decode's code
}

// Where two heads do not fit a row, asking for them is refused.
TEST_P(GpuDecodeTma, RefusesTwoHeadsThatDoNotFit) {
  Random random(9055);
  std::vector<CaseSpec> cases(4, few_of_heads(random));
  cases[0].layout = Layout::bhsd;
  cases[1].num_kv_heads = cases[1].num_heads = 3;
  cases[2].seqlen_q = 33;
  cases[3].head_dim = cases[3].head_dim_v = 128;
  for (const CaseSpec& s : cases) {
    Case c(s, random);
    c.options.kernel = kernel();
    c.options.tuning = "heads_in_row=2";
    const Result<Plan> planned = plan(c.problem(), device(), c.options);
    ASSERT_FALSE(planned.ok()) << to_string(s);
    EXPECT_NE(planned.status().message().find("heads_in_row"), std::string::npos)
        << planned.status().message();
  }
}

// Plans for 132 multiprocessors: [batch, heads, KV heads, dim, keys], then splits, heads a row,
// programmatic dependent launch.
TEST(GpuDecodeTmaChoice, SplitsAndHeads) {
  struct Call {
    int64_t batch, num_heads, num_kv_heads, head_dim, seqlen_k;
    int splits, heads;
    bool early;
  };
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip("sm_90a", storage, chip));
  const auto& families = gpu::families();
  const auto family = std::find_if(families.begin(), families.end(),
                                   [](const auto* f) { return f->name() == "decode_tma"; });
  ASSERT_NE(family, families.end());
  Random random(9070);
  for (const Call& call :
       {Call{1, 32, 8, 128, 8192, 32, 1, true}, Call{20, 32, 8, 128, 8192, 8, 1, true},
        Call{16, 32, 8, 128, 8192, 1, 1, false}, Call{64, 32, 8, 128, 4096, 1, 1, true},
        Call{32, 16, 2, 256, 4096, 2, 1, true}, Call{8, 32, 32, 64, 4096, 1, 2, false},
        Call{4, 32, 32, 64, 2048, 1, 1, false}, Call{1, 32, 32, 64, 1024, 4, 1, true},
        Call{1, 32, 8, 64, 2048, 8, 1, true}, Call{1, 32, 8, 128, 4400, 14, 1, true}}) {
    CaseSpec spec;
    spec.dtype = DType::bf16;
    spec.num_heads = spec.num_kv_heads = 2;
    spec.head_dim = spec.head_dim_v = call.head_dim;
    Problem p = Case(spec, random).problem();
    p.batch = call.batch;
    p.num_heads = call.num_heads;
    p.num_kv_heads = call.num_kv_heads;
    p.seqlen_k = call.seqlen_k;
    constexpr int kComputeUnits = 132;
    const gpu::LaunchPlan plan = (*family)->plan(p, chip, kComputeUnits);
    const gpu::KernelLaunch& first = plan.launches.front();
    EXPECT_EQ(plan.num_splits, call.splits) << to_string(p);
    EXPECT_EQ(first.specialisation.heads_in_row, call.heads) << to_string(p);
    EXPECT_EQ(first.programmatic_launch, call.early) << to_string(p);
  }
}

// NaN in one head's keys and values reaches no other head.
TEST_P(GpuDecodeTma, InfinityStaysInItsHead) {
  Random random(9060);
  for (const int64_t head : {0, 1}) {
    const CaseSpec s = few_of_heads(random);
    Case c(s, random);
    c.options.tuning = "heads_in_row=2";
    Case::set(c.tensors.k, {0, 40, head, 3}, HUGE_VALF);
    Case::set(c.tensors.v, {0, 50, head, 5}, HUGE_VALF);
    const Status status = run_kernel(c, kernel(), {device()});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(std::isfinite(Case::get(c.tensors.out, {0, 0, head, 5}))) << head;
    for (int64_t d = 0; d < s.head_dim; ++d)
      EXPECT_TRUE(std::isfinite(Case::get(c.tensors.out, {0, 0, 1 - head, d}))) << head;
  }
}

// Why it refuses a problem, in explain's words.
TEST_P(GpuDecodeTma, SaysWhyNot) {
  Random random(9040);
  CaseSpec s = few(DType::bf16, 64, 2, 300, random);
  s.num_kv_heads = 1;
  s.keep = true;
  expect_reason(s, "each head has a mask of its own, and several share a KV head's rows", random);
  expect_reason(few(DType::bf16, 59, 2, 300, random),
                "the TMA reads rows and strides of whole pieces of 16 bytes", random);
  expect_reason(spec_of(DType::bf16, 64, 300, 300, random), "at most 128 are served", random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuDecodeTma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
