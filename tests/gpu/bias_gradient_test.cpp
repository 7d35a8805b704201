// dbias by a launch of its own (kernels/backward/bias_gradient.h; fp32: bias_gradient_fp32.h), on
// emulated chips of every target: every pattern of what it is summed over, every feature of scores,
// any number of parts, beside every family.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gpu/device_list.h"
#include "gpu/first_use.h"
#include "gpu/gpu_devices.h"
#include "gpu/gpu_runner.h"
#include "gpu/launch/backward.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// dbias alone. Above 64 keys no family has it beside other gradients.
CaseSpec spec_of(int64_t head_dim, Random& random) {
  CaseSpec s;
  s.backward = true;
  s.dtype = random.pick({DType::bf16, DType::fp16});
  s.bias = true;
  s.bias_dtype = random.pick({DType::fp32, DType::bf16, DType::fp16});
  s.bias_broadcast = {true, false, false};
  s.head_dim = s.head_dim_v = head_dim;
  s.batch = 3;
  s.num_heads = s.num_kv_heads = 2;
  s.seqlen_q = random.between(65, 140);
  s.seqlen_k = random.between(65, 140);
  s.gradients = {false, false, false, true, false};
  return s;
}

class GpuBiasGradient : public GpuTest {
 protected:
  // By the family that all targets have.
  static std::string kernel_for(const Case& c) {
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.find(".backward.") != std::string::npos &&
          kernel.find("portable") == std::string::npos)
        return kernel;
    }
    return "";
  }
  static void check(const CaseSpec& s, Random& random) {
    SCOPED_TRACE(to_string(s));
    Case c(s, random);
    const std::string kernel = kernel_for(c);
    ASSERT_NE(kernel, "");
    EXPECT_TRUE(verified(c, kernel, Where{device()}));
    if (!random.chance(0.2)) return;
    const std::vector<float> first = c.output_values();
    EXPECT_TRUE(verified(c, kernel, Where{device()}));
    EXPECT_TRUE(same_bits(first, c.output_values()));
  }
};

TEST_P(GpuBiasGradient, EveryBroadcast) {
  Random random(own_stream(7601));
  for (int pattern = 0; pattern < 8; ++pattern) {
    if (!drawn()) continue;
    CaseSpec s = spec_of(random.pick({16, 32, 40}), random);
    s.bias_broadcast = {(pattern & 1) != 0, (pattern & 2) != 0, (pattern & 4) != 0};
    check(s, random);
    // A sum over what the bias is not broadcast over: each term has a bias of its own.
    s.bias_broadcast = {};
    s.dbias_summed = {(pattern & 1) != 0, (pattern & 2) != 0, (pattern & 4) != 0};
    s.layout = Layout::odd_strides;
    check(s, random);
  }
}

TEST_P(GpuBiasGradient, Masks) {
  Random random(own_stream(7602));
  // Padding: a key mask a batch. Tiles that all keep, tiles that none does, and edges.
  CaseSpec s = spec_of(32, random);
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {false, true, true};
  s.seqlen_q = s.seqlen_k = 200;
  s.batch = 2;
  check(s, random);
  s.keep_share = 1;
  check(s, random);
  s = spec_of(random.pick({32, 64}), random);  // any mask, a row a query
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), false};
  s.bias_broadcast = {true, random.chance(0.5), random.chance(0.5)};
  check(s, random);
}

TEST_P(GpuBiasGradient, Bands) {
  Random random(own_stream(7603));
  CaseSpec s = spec_of(32, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.seqlen_q = s.seqlen_k = 270;  // tiles before the diagonal, on it and behind it
  s.batch = 2;
  s.num_heads = s.num_kv_heads = 1;
  check(s, random);
  s = spec_of(32, random);
  s.window_left = random.between(0, 40);
  s.window_right = random.between(0, 40);
  s.seqlen_q = random.between(130, 200);  // over queries tiles of the band move with the term
  s.bias_broadcast = {random.chance(0.5), random.chance(0.5), true};
  s.nan_in_masked = true;
  check(s, random);
}

TEST_P(GpuBiasGradient, WhatChangesScores) {
  Random random(own_stream(7604));
  const auto with = [&](const auto& change) {
    if (!drawn()) return;
    CaseSpec s = spec_of(random.pick({32, 64}), random);
    s.num_heads = 4;
    change(s);
    check(s, random);
  };
  with([](CaseSpec& s) { s.alibi = 1; });
  with([](CaseSpec& s) { s.softcap = 20; });
  with([](CaseSpec& s) { s.dropout = 0.3F; });
  with([](CaseSpec& s) { s.sinks = s.dlse = true; });
  with([](CaseSpec& s) { s.huge_bias = true; });
  with([&](CaseSpec& s) {
    s.alibi = 2;
    s.softcap = 20;
    s.dropout = 0.3F;
    s.keep = true;
    s.causal = Causal::bottom_right;
    s.bias_broadcast = {random.chance(0.5), true, random.chance(0.5)};
  });
}

TEST_P(GpuBiasGradient, HeadDims) {
  Random random(own_stream(7605));
  for (const int64_t dim : {59, 64, 96, 128, 160, 256}) {
    if (!drawn(2)) continue;
    CaseSpec s = spec_of(dim, random);
    s.head_dim_v = random.chance(0.5) ? dim : dim / 2 + 3;
    s.batch = 2;
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    check(s, random);
  }
}

// Queries without any key: their dout may hold anything.
TEST_P(GpuBiasGradient, QueriesWithoutKeys) {
  Random random(own_stream(7606));
  CaseSpec s = spec_of(32, random);
  s.seqlen_q = 150;
  s.seqlen_k = 100;
  for (const bool over_queries : {false, true}) {
    s.bias_broadcast = {true, false, over_queries};
    s.causal = over_queries ? Causal::bottom_right : Causal::none;  // the first 50 attend nothing
    Case c(s, random);
    for (int64_t b = 0; b < s.batch; ++b)
      Case::set(c.tensors.dout, {b, 3, 1, 5}, std::numeric_limits<float>::quiet_NaN());
    if (!over_queries) {  // a row of -inf in place of the mask: as if the forward pass had seen it
      for (int64_t j = 0; j < s.seqlen_k; ++j)
        Case::set(c.tensors.bias, {0, 1, 3, j}, -std::numeric_limits<float>::infinity());
      for (int64_t b = 0; b < s.batch; ++b)
        Case::set(c.tensors.lse, {b, 1, 3, 0}, -std::numeric_limits<float>::infinity());
    }
    const std::string kernel = kernel_for(c);
    EXPECT_TRUE(run_kernel(c, kernel, {device()}).ok());
    for (const float x : c.output_values()) EXPECT_TRUE(std::isfinite(x));
  }
}

// Every family composes its launches with this one.
TEST_P(GpuBiasGradient, BesideEveryFamily) {
  Random random(own_stream(7607));
  CaseSpec s = spec_of(64, random);
  s.seqlen_q = s.seqlen_k = 130;
  s.num_heads = 4;
  s.gradients = {true, true, true, true, true};
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.layout = Layout::odd_strides;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

INSTANTIATE_TEST_SUITE_P(On, GpuBiasGradient,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

class HopperBiasGradient : public ::testing::TestWithParam<const char*> {};

// The families of warpgroup products, of which no other target has one.
TEST_P(HopperBiasGradient, BesideIt) {
  const std::string device = "emulated:sm_90a";
  if (const std::string why = why_unusable(device); !why.empty()) GTEST_SKIP() << why;
  Random random(7608);
  CaseSpec s = spec_of(64, random);
  s.batch = 2;
  s.seqlen_q = s.seqlen_k = 130;
  s.gradients = {true, true, true, true, true};
  s.keep = random.chance(0.5);
  s.keep_broadcast = {false, true, true};
  Case c(s, random);
  c.options.deterministic = false;
  const std::string kernel = std::string("emulated.") + GetParam() + ".sm90";
  c.options.kernel = kernel;
  const Result<Plan> planned = plan(c.problem(), device, c.options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_TRUE(verified(c, kernel, {device})) << to_string(s);
}

INSTANTIATE_TEST_SUITE_P(Each, HopperBiasGradient,
                         ::testing::Values("backward_tma", "backward_wgmma",
                                           "backward_wgmma_atomic"),
                         [](const auto& info) { return std::string(info.param); });

// Runs a problem by the family `backward` for so many compute units. Returns how many parts dbias
// had.
int parts_of_run(const CaseSpec& spec, const char* chip, int compute_units, Random& random) {
  const std::string name = std::string("emulated:") + chip;
  const gpu::Device* const device = gpu::DeviceList(gpu::emulated_driver()).find(name);
  if (device == nullptr) {
    ADD_FAILURE() << name;
    return 0;
  }
  Case c(spec, random);
  const Problem p = c.problem();
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() != "backward" || !device->chip.runs(family->target()) ||
        !family->serves(p, device->chip).yes || family->target().is_portable())
      continue;
    gpu::LaunchPlan plan = family->plan(p, device->chip, compute_units);
    const int parts = plan.backward.bias_parts;
    EXPECT_TRUE(std::any_of(plan.launches.begin(), plan.launches.end(), [](const auto& launch) {
      return launch.specialisation.entry == "backward/bias_gradient.h";
    }));
    gpu::GpuRunner runner(gpu::emulated_driver(), *device, p, std::move(plan),
                          KernelConfig{"backward"}, true);
    EXPECT_TRUE(runner.load().ok());
    const auto there = DeviceCopy::make(name, c.tensors, 0, p.pass);
    const Result<void*> workspace = there.value()->make_workspace(runner.workspace_bytes());
    EXPECT_TRUE(runner.run(nullptr, there.value()->tensors(), workspace.value()).ok());
    EXPECT_TRUE(there.value()->download().ok());
    const VerifyReport report = verify_result(p, c.tensors);
    EXPECT_TRUE(report.ok) << report.message << "\n  " << to_string(spec);
    return parts;
  }
  ADD_FAILURE() << "no family";
  return 0;
}

// Sums of few parts by one lane an element, of many by four; rows of whole fours of keys, or not.
TEST(GpuBiasGradientParts, AreAddedUp) {
  Random random(7610);
  CaseSpec s = spec_of(32, random);
  s.num_heads = s.num_kv_heads = 1;
  s.seqlen_q = 70;
  struct Run {
    int64_t batch, seqlen_k;
    int units, least, most;
    bool over_queries;
  };
  uint64_t number = 0;
  for (const Run& run : {Run{40, 72, 8, 2, 8, false},
                         {40, 71, 8, 2, 8, false},
                         {300, 72, 40, 9, 40, false},
                         {300, 67, 40, 9, 40, false},
                         {40, 72, 8, 2, 8, true}}) {
    // Neighbours differ in one thing: a run of all stages takes every second one.
    if (sampled_run() && (number++ + test_seed()) % 2 != 0) continue;
    s.batch = run.batch;
    s.seqlen_k = run.seqlen_k;
    s.bias_broadcast = {true, false, run.over_queries};
    const char* chip = random.pick({"gfx1100", "gfx942", "sm_80"});
    const int parts = parts_of_run(s, chip, run.units, random);
    EXPECT_GE(parts, run.least);
    EXPECT_LE(parts, run.most);
  }
}

// Triangle attention's kernels, the sum of parts included, are those of a small problem: AMD's are
// checked at their first use.
TEST(GpuBiasGradientParts, AreSeenAtTheFirstUse) {
  constexpr double kAmdFlops = 8e9;
  Random random(7611);
  for (const char* arch : {"gfx1100", "gfx1201", "gfx942"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    for (const int64_t length : {128, 256, 384, 512, 768}) {
      for (const bool keep : {false, true}) {
        CaseSpec s = spec_of(32, random);
        s.batch = s.seqlen_q = s.seqlen_k = 2;
        s.num_heads = s.num_kv_heads = 4;
        s.gradients = {true, true, true, true, false};
        s.keep = keep;
        s.keep_broadcast = {false, true, true};
        Problem p = Case(s, random).problem();
        p.batch = p.seqlen_q = p.seqlen_k = p.padded_k = length;
        for (const gpu::Family* family : gpu::families()) {
          if (!chip.runs(family->target()) || family->name() != "backward" ||
              family->target().is_portable())
            continue;
          const gpu::LaunchPlan plan = family->plan(p, chip, 96);
          EXPECT_TRUE(gpu::find_small_use(*family, chip, 96, p, plan,
                                          family->space(p, chip, 96).usual(), kAmdFlops)
                          .has_value())
              << arch << ", " << plan.backward.bias_parts << " parts: " << to_string(p);
        }
      }
    }
  }
}

TEST(GpuBiasGradientParts, FillTheChip) {
  // 16 tiles of 512 terms on 132 multiprocessors: 8 rounds of half as many parts would idle some.
  const int64_t parts = gpu::bias_gradient_parts(64, 512, 16, 132);
  EXPECT_GE(parts, 2);
  EXPECT_LE(parts, 16);
  // What a part costs counts: a few terms stay together.
  EXPECT_EQ(gpu::bias_gradient_parts(1, 4, 100, 132), 1);
  // No memory for parts; no terms; no tiles.
  EXPECT_EQ(gpu::bias_gradient_parts(4, 512, 1, 132), 1);
  EXPECT_EQ(gpu::bias_gradient_parts(4, 0, 8, 132), 1);
  EXPECT_EQ(gpu::bias_gradient_parts(0, 512, 8, 132), 1);
  // One tile: as many parts as multiprocessors, but for what they cost.
  EXPECT_GE(gpu::bias_gradient_parts(1, 4096, 1000, 132), 100);
  EXPECT_LE(gpu::bias_gradient_parts(1, 4096, 1000, 132), 132);
}

// Launches of dbias by backward_fp32's plan.
std::vector<std::string> launches_of_dbias(const Problem& p, std::string_view arch) {
  std::string storage;
  gpu::Chip chip{};
  std::vector<std::string> entries;
  if (!gpu::find_chip(arch, storage, chip)) return entries;
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() != "backward_fp32" || !chip.runs(family->target())) continue;
    for (const gpu::KernelLaunch& launch : family->plan(p, chip, 132).launches) {
      const gpu::Specialisation& s = launch.specialisation;
      if (s.outputs != gpu::kGivesDbias) continue;
      EXPECT_LE(s.lds_bytes * std::max(1, s.min_workgroups), chip.lds_bytes) << arch;
      entries.emplace_back(s.entry);
    }
  }
  return entries;
}

// fp32 (kernels/backward/bias_gradient_fp32.h), on chips whose target has tiles for it.
class FloatBiasGradient : public ::testing::TestWithParam<const char*> {
 protected:
  static CaseSpec float_spec(int64_t head_dim, Random& random) {
    CaseSpec s = spec_of(head_dim, random);
    s.dtype = DType::fp32;
    return s;
  }
  static std::string device() { return std::string("emulated:") + GetParam(); }
  static void check(const CaseSpec& s, Random& random) {
    SCOPED_TRACE(to_string(s));
    Case c(s, random);
    check(c, random);
  }
  static void check(Case& c, Random& random) {
    EXPECT_EQ(launches_of_dbias(c.problem(), GetParam()),
              std::vector<std::string>{"backward/bias_gradient_fp32.h"});
    const std::string kernel = "emulated.backward_fp32.sm80";
    EXPECT_TRUE(verified(c, kernel, Where{device()}));
    if (!random.chance(0.2)) return;
    const std::vector<float> first = c.output_values();
    EXPECT_TRUE(verified(c, kernel, Where{device()}));
    EXPECT_TRUE(same_bits(first, c.output_values()));
  }
};

TEST_P(FloatBiasGradient, EveryBroadcast) {
  Random random(7620);
  for (int pattern = 1; pattern < 8; ++pattern) {
    if (sampled_run() && !random.chance(0.5)) continue;
    CaseSpec s = float_spec(random.pick({16, 32, 40, 64}), random);
    s.num_kv_heads = random.pick({1, 2});
    s.bias_broadcast = {(pattern & 1) != 0, (pattern & 2) != 0, (pattern & 4) != 0};
    check(s, random);
    // A sum over what the bias is not broadcast over: each term has a bias of its own.
    s.bias_broadcast = {};
    s.dbias_summed = {(pattern & 1) != 0, (pattern & 2) != 0, (pattern & 4) != 0};
    s.layout = Layout::odd_strides;
    check(s, random);
  }
}

TEST_P(FloatBiasGradient, MasksAndBands) {
  Random random(7621);
  CaseSpec s = float_spec(32, random);  // padding: a key mask a batch
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {false, true, true};
  s.seqlen_q = s.seqlen_k = 200;
  s.batch = 2;
  check(s, random);
  s = float_spec(random.pick({32, 64}), random);  // any mask, a row a query
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), false};
  s.bias_broadcast = {true, random.chance(0.5), random.chance(0.5)};
  check(s, random);
  s = float_spec(32, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.seqlen_q = s.seqlen_k = 270;  // tiles before the diagonal, on it and behind it
  s.batch = 2;
  s.num_heads = s.num_kv_heads = 1;
  check(s, random);
  s = float_spec(32, random);
  s.window_left = random.between(0, 40);
  s.window_right = random.between(0, 40);
  s.seqlen_q = random.between(130, 200);  // over queries tiles of the band move with the term
  s.bias_broadcast = {random.chance(0.5), random.chance(0.5), true};
  s.nan_in_masked = true;
  check(s, random);
}

TEST_P(FloatBiasGradient, WhatChangesScores) {
  Random random(7622);
  const auto with = [&](const auto& change) {
    if (sampled_run() && !random.chance(0.5)) return;
    CaseSpec s = float_spec(random.pick({32, 64}), random);
    s.num_heads = 4;
    change(s);
    check(s, random);
  };
  with([](CaseSpec& s) { s.alibi = 1; });
  with([](CaseSpec& s) { s.softcap = 20; });
  with([](CaseSpec& s) { s.dropout = 0.3F; });
  with([](CaseSpec& s) { s.sinks = s.dlse = true; });
  with([](CaseSpec& s) { s.huge_bias = true; });
}

TEST_P(FloatBiasGradient, HeadDims) {
  Random random(7623);
  for (const int64_t dim : {8, 59, 64, 96, 128}) {
    if (sampled_run() && !random.chance(0.5)) continue;
    CaseSpec s = float_spec(dim, random);
    s.head_dim_v = random.chance(0.5) ? dim : dim / 2 + 3;
    s.batch = 2;
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    check(s, random);
  }
}

// An infinity stays in its row: the sum became NaN, and is computed again.
TEST_P(FloatBiasGradient, InfiniteDout) {
  Random random(7624);
  Case c(float_spec(32, random), random);
  Case::set(c.tensors.dout, {1, 5, 1, 3}, std::numeric_limits<float>::infinity());
  check(c, random);
}

TEST(FloatBiasGradientPlan, OfEveryChip) {
  Random random(7625);
  for (const char* arch : {"sm_80", "sm_86", "sm_90a", "sm_120"}) {
    for (const int64_t dim : {16, 32, 64, 128}) {
      CaseSpec s = spec_of(dim, random);
      s.dtype = DType::fp32;
      const Case c(s, random);
      EXPECT_EQ(launches_of_dbias(c.problem(), arch),
                std::vector<std::string>{"backward/bias_gradient_fp32.h"})
          << arch << ", " << dim;
    }
    // No room for so many dims.
    CaseSpec s = spec_of(200, random);
    s.dtype = DType::fp32;
    const Case c(s, random);
    EXPECT_EQ(launches_of_dbias(c.problem(), arch),
              std::vector<std::string>{"backward/backward_portable.h"})
        << arch;
  }
}

INSTANTIATE_TEST_SUITE_P(On, FloatBiasGradient, ::testing::Values("sm_80", "sm_90a"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fulmen::testing
