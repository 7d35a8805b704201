// The backward pass by warpgroup products, with atomics and without, on the one emulated chip that
// has them, whose other kernels are sm_80's, and on the machine's GPU where it is a Hopper.
#include <algorithm>
#include <array>

#include "gpu/gpu_devices.h"
#include "gpu/plan_results.h"
#include "gpu/targets/chip.h"
#include "gpu/targets/sm90.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuBackwardWgmma : public HopperTest {
 protected:
  GpuBackwardWgmma() : HopperTest("backward_wgmma", true) {}
  // Runs the kernel with atomics, too, where it takes the case.
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const {
    if (!drawn(3)) return;
    Case c(spec, random);
    const std::vector<std::string> kernels = kernels_for(c.problem(), device());
    EXPECT_NE(std::find(kernels.begin(), kernels.end(), kernel()), kernels.end())
        << to_string(spec);
    for (const std::string& kernel : kernels) {
      if (kernel.find(".backward_wgmma") == std::string::npos) continue;
      EXPECT_TRUE(verified(c, kernel, {device(), shift})) << to_string(spec);
    }
  }
};

// Several tiles of keys and queries, the last ones partial; warpgroups with keys of their own, and
// sharing them.
TEST_P(GpuBackwardWgmma, ShapesAndLayouts) {
  Random random(7600);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(dim == 128 ? DType::fp16 : DType::bf16, dim, random.between(129, 260),
                         random.between(129, 200), random);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  check(spec_of(DType::bf16, 64, 1, 147, random), random);
  check(spec_of(DType::fp16, 128, random.between(64, 130), random.between(1, 64), random), random);
}

// Buffers of columns are reused.
TEST_P(GpuBackwardWgmma, MoreTilesThanBuffers) {
  Random random(7695);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s =
        spec_of(DType::bf16, dim, random.between(65, 190), random.between(321, 400), random);
    s.num_heads = 3;
    check(s, random);
  }
}

// Where workgroups of a head begin at different queries, the last tile is partial for all of them.
TEST_P(GpuBackwardWgmma, PartialTilesOfQueriesUnderABias) {
  Random random(7605);
  CaseSpec s = spec_of(DType::fp16, 128, random.between(65, 127), 256, random);
  s.num_heads = 2;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.keep = true;
  s.gradients[3] = false;
  check(s, random);
}

// Few blocks of keys: on 132 multiprocessors the queries are split, and dk's and dv's sums are
// added by a launch behind. Some splits have no query that attends a key.
TEST(GpuBackwardWgmmaSplits, FewKeysManyQueries) {
  constexpr int kUnits = 132;
  Random random(7697);
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip("sm_90a", storage, chip));
  const auto run = [&](CaseSpec s, int splits, float more_bias = 0) {
    s.backward = true;
    Case c(s, random);
    for (int64_t i = 0; more_bias != 0 && i < s.seqlen_q; ++i) {
      for (int64_t j = 0; j < s.seqlen_k; ++j) {
        const InputTensor& bias = c.tensors.bias;
        Case::set({const_cast<void*>(bias.data), bias.dtype, bias.shape, bias.strides},
                  {0, 0, i, j}, Case::get(bias, {0, 0, i, j}) + more_bias);
      }
    }
    if (more_bias != 0) set_forward_results(c);  // of the bias as it was rounded
    for (const gpu::Family* family : gpu::families()) {
      if (family->name() != "backward_wgmma") continue;
      const gpu::LaunchPlan plan = family->plan(c.problem(), chip, kUnits);
      EXPECT_EQ(plan.num_splits, splits) << to_string(s);
      EXPECT_TRUE(plan_gives_right_results(c, "emulated:sm_90a", plan)) << to_string(s);
    }
  };
  CaseSpec s;
  s.dtype = DType::bf16;
  s.head_dim = s.head_dim_v = 64;
  s.seqlen_q = 640;
  s.seqlen_k = random.between(65, 128);
  s.num_heads = s.num_kv_heads = 1;
  s.gradients[3] = false;
  run(s, 3);
  s.num_heads = 2;  // a split's least work is shared by heads
  s.causal = Causal::bottom_right;
  run(s, 5);
  s.dtype = DType::fp16;
  s.head_dim = s.head_dim_v = 136;  // dk and dv by a launch each
  s.seqlen_q = 300;
  s.seqlen_k = random.between(20, 90);
  s.causal = Causal::none;
  s.layout = Layout::odd_strides;
  run(s, 3);
  // A bias under a causal mask, where a block's first query lies inside a split. Rows behind a
  // split's end are zeros: their probability by such a bias is infinite in fp16. A constant more of
  // it changes no gradient.
  s.layout = Layout::bshd;
  s.head_dim = s.head_dim_v = 64;
  s.seqlen_q = 640;
  s.seqlen_k = 668;
  s.num_heads = s.num_kv_heads = 1;
  s.causal = Causal::bottom_right;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.bias_broadcast = {true, true, false};
  run(s, 3, 20);
}

TEST_P(GpuBackwardWgmma, DropoutInBands) {
  Random random(7615);
  check(dropout_in_band(random.between(65, 140), 300, random), random);
}

TEST_P(GpuBackwardWgmma, Features) {
  Random random(7610);
  CaseSpec s = spec_of(DType::bf16, 128, random.between(65, 200), random.between(129, 200), random);
  s.batch = 2;
  s.num_heads = 2;
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  s.dropout = 0.3F;
  s.bias = true;
  s.bias_dtype = random.pick({DType::fp32, DType::bf16});
  s.gradients[3] = false;
  check(s, random);

  s = spec_of(DType::fp16, 40, 150, 90, random);  // partial dims, rows of odd lengths
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  s.dlse = true;
  check(s, random);

  s = spec_of(DType::bf16, 192, 70, 100, random);
  s.head_dim_v = 48;
  s.keep = true;
  s.nan_in_masked = true;
  s.alibi = 2;
  s.causal = Causal::bottom_right;
  check(s, random, 1);  // tensors at no multiple of 16 bytes

  for (const bool dk : {true, false}) {
    s = spec_of(DType::fp16, 96, 70, 140, random);
    s.gradients = {true, dk, !dk, false, false};
    check(s, random);
  }
}

// Tiles that only one warpgroup's keys attend, and several heads of queries for a head of keys.
TEST_P(GpuBackwardWgmma, BandsThatHalfOfTheKeysMiss) {
  Random random(7650);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(DType::bf16, dim, 200, 256, random);
    s.num_heads = 2;
    s.window_left = random.between(0, 20);
    s.window_right = random.between(0, 20);
    check(s, random);
  }
}

TEST_P(GpuBackwardWgmma, SequencesOfDifferentLengths) {
  Random random(7620);
  CaseSpec s = spec_of(DType::bf16, 128, 150, 150, random);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  check(s, random);

  // The warpgroups share keys.
  s = spec_of(DType::fp16, 160, 90, 110, random);
  s.batch = 2;
  s.num_heads = 2;
  s.packed_q = s.packed_k = true;
  s.dropout = 0.2F;
  check(s, random);
}

TEST_P(GpuBackwardWgmma, QueriesWithoutKeysHaveNoGradient) {
  Random random(7675);
  for (const int64_t dim : {64, 256})
    expect_no_gradient_without_keys(spec_of(DType::bf16, dim, 150, 100, random), random);
}

TEST_P(GpuBackwardWgmma, AnyFeatures) {
  constexpr int kCases = 4;
  Random random(7630);
  int served = 0;
  for (int n = 0; served < kCases && n < 50 * kCases; ++n) {
    CaseSpec s = limited(random_backward_spec(random));
    const Case c(s, random);
    const std::vector<std::string> kernels = kernels_for(c.problem(), device());
    if (std::find(kernels.begin(), kernels.end(), kernel()) == kernels.end()) continue;
    check(s, random);
    ++served;
  }
  EXPECT_EQ(served, kCases);
}

// Only the gradients that are asked for; wide heads have a launch for each gradient.
TEST_P(GpuBackwardWgmma, EachGradientAlone) {
  Random random(7670);
  for (const int64_t dim : {64, 128, 256}) {
    for (const std::array<bool, 5>& gradients : {std::array{true, false, false, false, false},
                                                 {false, true, false, false, false},
                                                 {false, false, true, false, false},
                                                 {false, true, true, false, false}}) {
      CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(65, 140),
                           random.between(65, 140), random);
      s.gradients = gradients;
      s.causal = random.pick({Causal::none, Causal::bottom_right});
      check(s, random);
    }
  }
}

// Modified scores have other tile shapes than plain ones.
TEST_P(GpuBackwardWgmma, BiasOverSeveralTiles) {
  Random random(7680);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s =
        spec_of(DType::bf16, dim, random.between(193, 260), random.between(193, 260), random);
    s.bias = true;
    s.bias_dtype = DType::bf16;
    s.gradients[3] = false;
    check(s, random);
  }
}

TEST_P(GpuBackwardWgmma, RepeatsBitForBit) {
  Random random(7690);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(DType::bf16, dim, 200, 200, random);
    s.num_heads = 2;
    Case c(s, random);
    ASSERT_TRUE(run_kernel(c, kernel(), Where{device()}).ok());
    const std::vector<float> first = c.output_values();
    ASSERT_TRUE(run_kernel(c, kernel(), Where{device()}).ok());
    EXPECT_EQ(first, c.output_values()) << dim;
  }
}

// They are chosen where rows and dims suffice: the one with atomics where bits may differ, and dq
// is wanted with dk or dv.
TEST_P(GpuBackwardWgmma, IsChosenForWideRows) {
  Random random(7640);
  const std::string driver = device().substr(0, device().find(':'));
  struct Shape {
    int64_t head_dim, seqlen_q, seqlen_k;
    bool wide, many_keys;
  };
  for (const Shape& shape : {Shape{128, 70, 150, true, true},
                             {40, 70, 150, true, true},
                             {128, 70, 64, true, false},
                             {256, 64, 64, true, false},
                             {128, 64, 64, false, false},
                             {128, 70, 32, true, false},
                             {32, 70, 150, false, true}}) {
    for (const bool deterministic : {false, true}) {
      for (const bool all : {false, true}) {
        CaseSpec s = spec_of(DType::bf16, shape.head_dim, shape.seqlen_q, shape.seqlen_k, random);
        if (!all) s.gradients = {true, false, false, false, false};
        Case c(s, random);
        c.options.deterministic = deterministic;
        const Result<Plan> planned = plan(c.problem(), device(), c.options);
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        const std::string& chosen = planned->config().kernel;
        const bool with_atomics = all && !deterministic && shape.many_keys;
        EXPECT_EQ(chosen == driver + ".backward_wgmma_atomic.sm90", shape.wide && with_atomics)
            << planned->explain();
        EXPECT_EQ(chosen == kernel(), shape.wide && !with_atomics) << planned->explain();
        EXPECT_EQ(planned->explain().find("it adds with atomics: gradients may differ") !=
                      std::string::npos,
                  with_atomics)
            << planned->explain();
      }
    }
  }
}

TEST_P(GpuBackwardWgmma, RefusesRowsBeyond32Bits) {
  Random random(7665);
  Problem p = Case(spec_of(DType::bf16, 64, 70, 150, random), random).problem();
  for (const bool many : {false, true}) {
    if (many) p.seqlen_k = int64_t{1} << 31;
    const std::vector<std::string> kernels = kernels_for(p, device());
    EXPECT_EQ(std::find(kernels.begin(), kernels.end(), kernel()) == kernels.end(), many);
  }
}

// Other chips have no such instructions; the emulator would run them there, too.
TEST(GpuBackwardWgmmaChips, NeedsHopper) {
  if (const std::string why = why_unusable("emulated:sm_80"); !why.empty()) GTEST_SKIP() << why;
  Random random(7660);
  CaseSpec s = small_spec(DType::bf16, 128, random);
  s.backward = true;
  s.seqlen_k = 150;
  const Case c(s, random);
  for (const char* arch : {"sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    EXPECT_EQ(chip.runs(gpu::kSm90), std::string_view(arch) == "sm_90a") << arch;
  }
  const std::vector<std::string> kernels = kernels_for(c.problem(), "emulated:sm_80");
  EXPECT_FALSE(kernels.empty());
  for (const char* kernel :
       {"emulated.backward_wgmma.sm90", "emulated.backward_wgmma_atomic.sm90"}) {
    EXPECT_EQ(std::find(kernels.begin(), kernels.end(), kernel), kernels.end());
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackwardWgmma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
