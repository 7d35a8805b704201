// Configurations other than the default give the same results, on processors and on emulated GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "fulmen/fulmen.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "support/run_kernel.h"
#include "support/test_chips.h"
#include "tuning/space.h"

namespace fulmen::testing {
namespace {

struct Tuned {
  const char* device;
  const char* kernel;
  int64_t seqlen_q, seqlen_k;
  int most;  // configurations that are run: an emulated one takes seconds to compile
  bool backward = false;
};

void PrintTo(const Tuned& t, std::ostream* out) { *out << t.kernel << " on " << t.device; }

bool is_listed(std::string_view name) {
  const auto names = tuning::parameter_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Configurations : public ::testing::TestWithParam<Tuned> {};

TEST_P(Configurations, GiveTheSameResults) {
  const Tuned& t = GetParam();
  CaseSpec spec;
  const bool fp32 =
      t.device == std::string("cpu") || std::string(t.kernel).find("_fp32.") != std::string::npos;
  spec.dtype = fp32 ? DType::fp32 : DType::bf16;
  spec.seqlen_q = t.seqlen_q;
  spec.seqlen_k = t.seqlen_k;
  spec.num_heads = 2;
  spec.num_kv_heads = t.backward ? 2 : 1;
  spec.backward = t.backward;
  spec.head_dim = spec.head_dim_v = 64;
  Random random(2600);
  Case c(spec, random);
  c.options.kernel = t.kernel;
  c.options.num_threads = 2;
  const Problem problem = c.problem();
  const Result<KernelTuning> tuning = kernel_tuning(problem, t.device, c.options);
  if (!tuning.ok() && tuning.status().code() == StatusCode::unavailable)
    GTEST_SKIP() << tuning.status().message();
  ASSERT_TRUE(tuning.ok()) << tuning.status().message();
  const std::vector<std::string>& all = tuning->configurations;
  ASSERT_GT(all.size(), 1U);
  EXPECT_EQ(tuning->kernel, t.kernel);
  const std::size_t step = std::max<std::size_t>(1, all.size() / static_cast<std::size_t>(t.most));
  for (std::size_t n = 1; n < all.size(); n += step) {
    c.options.tuning = all[n];
    const Result<Plan> planned = plan(problem, t.device, c.options);
    ASSERT_TRUE(planned.ok()) << all[n] << ": " << planned.status().message();
    for (const KernelParameter& parameter : planned->config().parameters) {
      EXPECT_TRUE(is_listed(parameter.name)) << parameter.name;
      EXPECT_EQ(parameter.source, "option") << planned->explain();
    }
    EXPECT_TRUE(verified(c, t.kernel, {t.device})) << all[n];
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Configurations,
    ::testing::Values(Tuned{"cpu", "cpu.prefill.scalar", 300, 200, 20},
                      Tuned{"cpu", "cpu.decode.scalar", 1, 3000, 20},
                      Tuned{"cpu", "cpu.short.scalar", 60, 60, 20},
                      Tuned{"emulated:gfx1100", "emulated.prefill.gfx11", 50, 70, 1},
                      Tuned{"emulated:gfx942", "emulated.decode.cdna3", 1, 700, 1},
                      Tuned{"emulated:sm_80", "emulated.prefill.sm80", 50, 70, 1},
                      Tuned{"emulated:sm_80", "emulated.prefill_fp32.sm80", 50, 70, 1},
                      Tuned{"emulated:sm_80", "emulated.backward_fp32.sm80", 50, 70, 1, true},
                      Tuned{"emulated:sm_80", "emulated.short.sm80", 50, 60, 1},
                      Tuned{"emulated:sm_80", "emulated.boards.sm80", 64, 64, 1},
                      Tuned{"emulated:sm_80", "emulated.short_backward.sm80", 50, 60, 1, true},
                      Tuned{"emulated:sm_80", "emulated.backward.sm80", 50, 70, 1, true},
                      Tuned{"emulated:sm_80", "emulated.backward_atomic.sm80", 50, 70, 1, true},
                      Tuned{"emulated:sm_90a", "emulated.backward_wgmma.sm90", 50, 70, 1, true},
                      Tuned{"emulated:sm_90a", "emulated.backward_wgmma_atomic.sm90", 50, 70, 1,
                            true},
                      Tuned{"emulated:sm_90a", "emulated.prefill_wgmma.sm90", 50, 70, 1},
                      Tuned{"emulated:sm_90a", "emulated.prefill_tma.sm90", 50, 70, 1}));

// Without compiling: each configuration that a space calls legal gives a plan within the chip's
// LDS, and its usual values give the family's own plan.
TEST(Spaces, KeepToTheChip) {
  std::set<std::string> tuned;
  for (const std::string& name :
       test_chips([](const gpu::Target&) { return true; }, Chips::one_of_each_target)) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(name, storage, chip));
    for (const auto& [seqlen_q, seqlen_k, backward] : {std::tuple{64, 64, false},
                                                       {1000, 1000, false},
                                                       {1, 5000, false},
                                                       {64, 64, true},
                                                       {300, 300, true},
                                                       {200, 200, false},
                                                       {200, 200, true}}) {
      CaseSpec spec;
      spec.dtype = DType::bf16;
      spec.batch = 3;
      spec.seqlen_q = seqlen_q;
      spec.seqlen_k = seqlen_k;
      spec.num_heads = spec.num_kv_heads = 2;
      spec.head_dim = spec.head_dim_v = 64;
      spec.backward = backward;
      if (seqlen_q == 200) spec.dtype = DType::fp32;
      Random random(2610);
      const Problem problem = Case(spec, random).problem();
      for (const gpu::Family* family : gpu::families()) {
        if (!chip.runs(family->target()) || family->pass() != problem.pass ||
            !family->serves(problem, chip).yes)
          continue;
        const tuning::Space space = family->space(problem, chip, 4);
        if (space.parameters.empty()) continue;
        tuned.insert(std::string(family->name()));
        for (const tuning::ParameterRange& parameter : space.parameters)
          EXPECT_TRUE(is_listed(parameter.name)) << parameter.name;
        const std::vector<tuning::Values> all = tuning::configurations(space);
        EXPECT_TRUE(space.takes(all.front()).yes) << family->name() << " on " << name;
        for (const tuning::Values& values : all) {
          const gpu::LaunchPlan plan = family->tuned_plan(problem, chip, 4, values);
          for (const gpu::KernelLaunch& launch : plan.launches) {
            EXPECT_LE(launch.specialisation.lds_bytes, chip.lds_bytes)
                << family->name() << " " << tuning::to_text(space, values);
            EXPECT_GT(launch.workgroups, 0)
                << family->name() << " " << tuning::to_text(space, values);
          }
        }
      }
    }
  }
  for (const char* name : {"backward", "backward_atomic", "backward_fp32", "backward_wgmma",
                           "backward_wgmma_atomic", "boards", "decode", "prefill", "prefill_fp32",
                           "prefill_tma", "prefill_wgmma", "short", "short_backward"}) {
    EXPECT_TRUE(tuned.contains(name)) << name;
  }
}

TEST(TuningOption, IsRefusedWhereAKernelHasNoParameters) {
  const Tensor q = Tensor::bshd(nullptr, DType::fp32, 1, 64, 1, 64);
  AttentionOptions options;
  options.kernel = "cpu.reference.double";
  options.tuning = "block_n=64";
  const Result<Problem> problem = make_problem({.q = q, .k = q, .v = q, .out = q}, options);
  ASSERT_TRUE(problem.ok());
  const Result<Plan> planned = plan(problem.value(), "cpu", options);
  EXPECT_EQ(planned.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(planned.status().message(),
            "options.tuning is \"block_n=64\": kernel \"cpu.reference.double\" has no parameters "
            "for this problem");
}

TEST(TuningOption, OverLdsIsRefusedWithTheNumbers) {
  const Tensor q = Tensor::bshd(nullptr, DType::bf16, 1, 512, 1, 128);
  AttentionOptions options;
  options.kernel = "emulated.prefill.gfx11";
  options.tuning = "block_n=128,buffers=2";
  const Result<Problem> problem = make_problem({.q = q, .k = q, .v = q, .out = q}, options);
  ASSERT_TRUE(problem.ok());
  const Result<Plan> planned = plan(problem.value(), "emulated:gfx1100", options);
  if (planned.status().code() == StatusCode::unavailable)
    GTEST_SKIP() << planned.status().message();
  EXPECT_EQ(planned.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(planned.status().message().find("bytes of LDS are needed, gfx1100 has 65536"),
            std::string::npos)
      << planned.status().message();
}

}  // namespace
}  // namespace fulmen::testing
