// dbias of which no element is a sum: stored by the launch that has the scores' gradients
// (kernels/backward/parts/stored_bias.h), in every family that has such a launch.
#include <algorithm>
#include <string>

#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuStoredBias : public GpuTest {
 protected:
  // A bias for each batch element and head. Rows of dbias are whole where there are 8 n keys.
  static CaseSpec own_bias(Random& random) {
    CaseSpec s;
    s.backward = true;
    s.dtype = random.pick({DType::bf16, DType::fp16});
    s.bias = true;
    s.bias_dtype = random.pick({DType::fp32, DType::bf16, DType::fp16});
    s.head_dim = s.head_dim_v = random.pick({32, 64, 96, 128});
    s.batch = random.between(1, 2);
    s.num_heads = 2;
    s.num_kv_heads = random.between(1, 2);
    s.seqlen_q = random.between(65, 140);
    s.seqlen_k = random.chance(0.5) ? 8 * random.between(9, 20) : random.between(65, 150);
    return s;
  }
  // Every kernel that gives the gradients, those with atomics, too.
  void check(const CaseSpec& spec, Random& random) {
    if (!drawn()) return;
    Case c(spec, random);
    c.options.deterministic = false;
    int run = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (!runs_here(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {device()})) << to_string(spec);
      ++run;
    }
    // Of fp32 every target but the oldest of a vendor leaves the kernels to that one.
    EXPECT_TRUE(run > 0 || spec.dtype == DType::fp32);
  }
};

TEST_P(GpuStoredBias, Shapes) {
  Random random(own_stream(7701));
  CaseSpec s = own_bias(random);
  check(s, random);
  s = own_bias(random);
  s.seqlen_q = 32;  // atoms of AlphaFold 3
  s.seqlen_k = 128;
  s.head_dim = s.head_dim_v = 32;
  check(s, random);
  s = own_bias(random);
  s.head_dim = s.head_dim_v = random.pick({160, 256});
  check(s, random);
}

// What a band or a mask leaves out is 0.
TEST_P(GpuStoredBias, BandsAndMasks) {
  Random random(own_stream(7702));
  CaseSpec s = own_bias(random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.seqlen_q = s.seqlen_k = random.between(130, 270);
  s.window_left = random.chance(0.5) ? random.between(0, 60) : -1;
  s.nan_in_masked = true;
  check(s, random);
  s = own_bias(random);
  s.seqlen_k = random.between(200, 300);
  s.keep = s.nan_in_masked = true;
  s.keep_pattern = random.pick(
      {KeepPattern::rows, KeepPattern::blocks, KeepPattern::right_padding, KeepPattern::nothing});
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  check(s, random);
}

TEST_P(GpuStoredBias, Features) {
  Random random(own_stream(7703));
  CaseSpec s = own_bias(random);
  s.dropout = 0.2F;
  s.alibi = 1;
  s.layout = random.pick({Layout::bhsd, Layout::odd_strides});
  check(s, random);
  s = own_bias(random);
  s.batch = 1;
  s.bias_broadcast = {true, false, false};  // of one batch element
  s.bias_dtype = s.dtype;
  s.huge_bias = true;
  check(s, random);
  s = own_bias(random);
  s.softcap = 20;  // the gradient by the bias is not that by the product: a launch of its own
  check(s, random);
}

TEST_P(GpuStoredBias, Fp32) {
  Random random(own_stream(7704));
  CaseSpec s = own_bias(random);
  s.dtype = s.bias_dtype = DType::fp32;
  s.head_dim = s.head_dim_v = random.pick({32, 64});
  check(s, random);
}

// A kernel of dbias alone is launched where its elements are sums, and nowhere else.
TEST(GpuStoredBiasPlans, HaveNoLaunchOfTheirOwn) {
  Random random(7705);
  for (const char* arch : {"sm_80", "sm_90a", "gfx1100", "gfx1201", "gfx90a", "gfx942"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    CaseSpec s;
    s.backward = s.bias = true;
    s.dtype = s.bias_dtype = DType::bf16;
    s.batch = s.num_heads = s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 64;
    s.seqlen_q = s.seqlen_k = 128;
    for (const bool shared : {false, true}) {
      s.bias_broadcast = {shared, false, false};
      const Case c(s, random);
      const Problem p = c.problem();
      for (const gpu::Family* family : gpu::families()) {
        if (!chip.runs(family->target()) || family->pass() != p.pass ||
            !family->serves(p, chip).yes)
          continue;
        const gpu::LaunchPlan plan = family->plan(p, chip, 100);
        const bool apart = std::any_of(
            plan.launches.begin(), plan.launches.end(), [](const gpu::KernelLaunch& launch) {
              return (launch.specialisation.outputs & gpu::kGivesDbias) != 0;
            });
        const bool has_registers = chip.arch != "gfx1100" && !family->target().is_portable();
        EXPECT_EQ(apart, shared || !has_registers) << arch << " " << family->name();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuStoredBias,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, GpuStoredBias, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
