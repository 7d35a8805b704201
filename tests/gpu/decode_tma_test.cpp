// Few queries whose keys the TMA brings, on the one emulated chip that has it, and on the machine's GPU where it is a Hopper.
#include <cmath>

#include "gpu/gpu_devices.h"
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
  // Two heads a row, however few the keys are.
  static constexpr const char* kTogether = "heads_in_row=2";
  void check_together(const CaseSpec& spec, Random& random) const {
    Case c(spec, random);
    c.options.tuning = kTogether;
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(spec);
  }
};

// Dims of one to four panels, and parts of them; one split and several; one tile of rows and two.
TEST_P(GpuDecodeTma, ShapesAndLayouts) {
  Random random(9000);
  for (const int64_t dim : {16, 64, 80, 128, 216, 256}) {
    CaseSpec s = few(dim % 128 == 0 ? DType::fp16 : DType::bf16, dim, random.between(1, 4), random.between(300, 900), random);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  check(few(DType::bf16, 64, 1, random.between(1, 70), random), random);
  check(few(DType::bf16, 128, 30, 600, random), random);
}

// Queries that attend different keys; what nobody attends is NaN.
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

// Two KV heads of 64 dims that are neighbours in memory come as one row: their rows, up to a wave's and more, features by head,
// splits and none, caches and pages.
TEST_P(GpuDecodeTma, NeighbouringHeads) {
  Random random(9050);
  for (const int64_t group : {1, 4, 8}) {
    CaseSpec s = few(random.pick({DType::bf16, DType::fp16}), 64, random.between(1, 32 / group), random.between(200, 900), random);
    s.num_kv_heads = random.pick({2, 4});
    s.num_heads = s.num_kv_heads * group;
    s.layout = random.pick({Layout::bshd, Layout::sbhd});
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.bias = group == 4;
    s.alibi = group == 4 ? 2 : 0;
    s.sinks = group == 8;
    check_together(s, random);
    s.used_k = true;
    s.nan_in_masked = true;
    s.page_size = random.pick({0, 16, 128});
    s.batch = 2;
    check_together(s, random);
  }
}

// What one head's keys and values hold reaches no other head.
TEST_P(GpuDecodeTma, InfinityStaysInItsHead) {
  Random random(9060);
  for (const int64_t head : {0, 1}) {
    CaseSpec s = few(DType::bf16, 64, 1, 200, random);
    s.num_kv_heads = s.num_heads = 2;
    Case c(s, random);
    c.options.tuning = kTogether;
    Case::set(c.tensors.k, {0, 40, head, 3}, HUGE_VALF);
    Case::set(c.tensors.v, {0, 50, head, 5}, HUGE_VALF);
    const Status status = run_kernel(c, kernel(), {device()});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(std::isfinite(Case::get(c.tensors.out, {0, 0, head, 5}))) << head;
    for (int64_t d = 0; d < s.head_dim; ++d) EXPECT_TRUE(std::isfinite(Case::get(c.tensors.out, {0, 0, 1 - head, d}))) << head;
  }
}

// Why it does not serve, in explain's words.
TEST_P(GpuDecodeTma, SaysWhyNot) {
  Random random(9040);
  CaseSpec s = few(DType::bf16, 64, 2, 300, random);
  s.keep = true;
  expect_reason(s, "values that a keep_mask leaves out", random);
  expect_reason(few(DType::bf16, 59, 2, 300, random), "the TMA reads rows and strides of whole pieces of 16 bytes", random);
  expect_reason(spec_of(DType::bf16, 64, 300, 300, random), "at most 128 are served", random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuDecodeTma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
