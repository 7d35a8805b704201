// Few queries of latent attention, whose values are the first dims of its keys, on emulated chips
// of each target with kernels for it, and on the machine's GPU where it is a Hopper.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/gpu_devices.h"
#include "plan/registry.h"
#include "reference/verify/verify.h"
#include "runtime/tensor_table.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

bool has_latent_tiles(const gpu::Target& target) { return target.decode_latent.has_value(); }
std::vector<std::string> latent_devices() {
  std::vector<std::string> names = hopper_devices();
  for (const std::string& chip : test_chips(has_latent_tiles)) names.push_back("emulated:" + chip);
  return names;
}

class GpuDecodeLatent : public HopperTest {
 protected:
  GpuDecodeLatent() : HopperTest("decode_latent", false) {}
  void SetUp() override { is_hopper() ? HopperTest::SetUp() : GpuTest::SetUp(); }
  std::string target() const override {
    for (const gpu::Target* one : gpu::targets()) {
      for (const std::string_view chip : one->test_chips) {
        if (has_latent_tiles(*one) && device().ends_with(chip)) return std::string(one->name);
      }
    }
    return HopperTest::target();
  }
  static bool is_hopper() {
    const std::vector<std::string> names = hopper_devices();
    return std::find(names.begin(), names.end(), device()) != names.end();
  }
  CaseSpec latent(DType dtype, int64_t heads, int64_t queries, int64_t keys, Random& random) const {
    CaseSpec s = spec_of(dtype, 576, queries, keys, random);
    s.head_dim_v = 512;
    s.num_heads = heads;
    s.values_in_keys = true;
    return s;
  }
  // Runs on copies and verifies what came.
  static void run(const Plan& planned, Case& c, const AttentionTensors& tensors) {
    c.poison_outputs();
    const auto there = DeviceCopy::make(device(), tensors, 0);
    ASSERT_TRUE(there.ok()) << there.status().message();
    const Result<void*> workspace = there.value()->make_workspace(planned.workspace_bytes());
    ASSERT_TRUE(workspace.ok());
    const Status ran = planned.run(nullptr, there.value()->tensors(), workspace.value(),
                                   planned.workspace_bytes());
    ASSERT_TRUE(ran.ok()) << ran.message();
    ASSERT_TRUE(backend_of(device())->synchronize(device(), nullptr).ok());
    ASSERT_TRUE(there.value()->download().ok());
    const Result<Problem> problem = make_problem(tensors, c.options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_EQ(problem->values_in_keys, tensors.v.data == tensors.k.data);
    const auto report = reference::verify(problem.value(), tensors, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(report->ok) << report->message;
  }
  // v is a copy of k's first dims, some of which differ.
  static void run_with_own_values(const Plan& planned, Case& c, Random& random) {
    AttentionTensors tensors = c.tensors;
    const std::size_t size = bytes_of(c.problem().k, c.problem().k_shape());
    std::vector<std::byte> values(size);
    std::memcpy(values.data(), tensors.k.data, size);
    tensors.v.data = values.data();
    for (int64_t j = 0; j < c.spec.seqlen_k; ++j)
      Case::set(tensors.v, {0, j, 0, random.between(0, 511)}, 2);
    run(planned, c, tensors);
  }
  void check_split(const CaseSpec& spec, int splits, Random& random) const {
    Case c(spec, random);
    c.options.tuning = "num_splits=" + std::to_string(splits);
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(spec);
  }
};

// One tile of keys, which leaves the second warpgroup without, pairs, and a pair's first tile; part
// of a tile of rows, whole ones, and several.
TEST_P(GpuDecodeLatent, RowsAndKeys) {
  Random random(9700);
  check(latent(DType::bf16, 16, 1, random.between(1, 64), random), random);
  check(latent(DType::fp16, 70, 1, random.between(65, 128), random), random);
  check(latent(DType::bf16, 64, 2, random.between(129, 192), random), random);
  CaseSpec s = latent(DType::bf16, 6, 3, random.between(300, 420), random);
  s.num_kv_heads = 2;
  s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
  check(s, random);
}

// Values that fill the keys, whose last panel has then no room for probabilities; halves of V of
// fewer panels; dims between panels; values that reach behind the last panel of keys.
TEST_P(GpuDecodeLatent, Dims) {
  Random random(9710);
  for (const auto& [dim, dim_v] : {std::pair<int64_t, int64_t>{512, 512},
                                   {320, 256},
                                   {448, 384},
                                   {328, 40},
                                   {272, 264},
                                   {576, 504}}) {
    CaseSpec s =
        latent(random.pick({DType::bf16, DType::fp16}), 20, 1, random.between(70, 200), random);
    s.head_dim = dim;
    s.head_dim_v = dim_v;
    check(s, random);
  }
}

// Queries that attend different keys; keys that none attends are NaN.
TEST_P(GpuDecodeLatent, Bands) {
  Random random(9720);
  CaseSpec s = latent(DType::bf16, 16, 4, random.between(130, 300), random);
  s.nan_in_masked = true;
  s.causal = Causal::bottom_right;
  check(s, random);
  s.window_left = random.between(0, 150);
  check(s, random);
  s.causal = Causal::top_left;
  check(s, random);
}

TEST_P(GpuDecodeLatent, Splits) {
  Random random(9730);
  CaseSpec s = latent(DType::bf16, 16, 1, random.between(1030, 1200), random);
  check_split(s, 2, random);
  s.causal = Causal::bottom_right;
  s.seqlen_q = 3;
  s.nan_in_masked = true;
  check_split(s, 4, random);
}

// A cache that is partly filled, with NaN behind; pages of fewer rows than a tile, and of more.
TEST_P(GpuDecodeLatent, Caches) {
  Random random(9740);
  for (const int64_t page : {0, 16, 64, 128}) {
    CaseSpec s =
        latent(random.pick({DType::bf16, DType::fp16}), 16, random.between(1, 2), 260, random);
    s.batch = 3;
    s.used_k = true;
    s.page_size = page;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = true;
    check(s, random);
  }
}

// A reference that moves in either tile, and in both; what else changes scores.
TEST_P(GpuDecodeLatent, Features) {
  Random random(9750);
  CaseSpec s = latent(DType::bf16, 16, 1, 400, random);
  s.q_size = 12;
  check(s, random);
  s.softcap = 20;
  s.sinks = true;
  check(s, random);
  s = latent(DType::fp16, 16, 2, 200, random);
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = random.pick({DType::fp16, DType::fp32});
  s.causal = Causal::bottom_right;
  check(s, random);
  check(s, random, 1);  // tensors at no multiple of 16 bytes: decode's code
}

// A plan for values in keys whose run has values of their own gives these, not the keys.
TEST_P(GpuDecodeLatent, ValuesThatAreNotKeysAfterAll) {
  Random random(9760);
  Case c(latent(DType::bf16, 16, 1, 100, random), random);
  AttentionOptions options = c.options;
  options.kernel = kernel();
  const Result<Plan> planned = plan(c.problem(), device(), options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  run_with_own_values(planned.value(), c, random);
}

// A plan for a range has one kernel for a length, whatever v is in the first run of it.
TEST_P(GpuDecodeLatent, RangesStayAsTheyWerePlanned) {
  Random random(9765);
  CaseSpec s = latent(DType::bf16, 16, 1, 200, random);
  s.lse = false;
  AttentionOptions options;
  options.kernel = kernel();
  options.vary_seqlen_k = true;
  const Result<Plan> planned = plan(Case(s, random).problem(), device(), options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  s.seqlen_k = random.between(100, 190);
  Case c(s, random);
  run_with_own_values(planned.value(), c, random);
  run(planned.value(), c, c.tensors);
}

TEST_P(GpuDecodeLatent, SaysWhatItDoesNotTake) {
  Random random(9770);
  CaseSpec s = latent(DType::bf16, 16, 1, 100, random);
  s.keep = true;
  expect_reason(s, "values that a keep_mask leaves out", random);
  s = latent(DType::bf16, 16, 1, 100, random);
  s.values_in_keys = false;
  expect_reason(s, "values that are the first dims of keys wider than 256", random);
  s = latent(DType::bf16, 16, 9, 100, random);
  expect_reason(s, "seqlen_q is 9, up to 8 are served", random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuDecodeLatent, ::testing::ValuesIn(latent_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
