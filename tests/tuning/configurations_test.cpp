// Configurations other than the default give the same results, on processors and on emulated GPUs.
#include <gtest/gtest.h>

#include <algorithm>

#include "fulmen/fulmen.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

struct Tuned {
  const char* device;
  const char* kernel;
  int64_t seqlen_q, seqlen_k;
  int most;  // configurations that are run: an emulated one takes seconds to compile
};

void PrintTo(const Tuned& t, std::ostream* out) { *out << t.kernel << " on " << t.device; }

class Configurations : public ::testing::TestWithParam<Tuned> {};

TEST_P(Configurations, GiveTheSameResults) {
  const Tuned& t = GetParam();
  CaseSpec spec;
  spec.dtype = t.device == std::string("cpu") ? DType::fp32 : DType::bf16;
  spec.seqlen_q = t.seqlen_q;
  spec.seqlen_k = t.seqlen_k;
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = spec.head_dim_v = 64;
  Random random(2600);
  Case c(spec, random);
  c.options.kernel = t.kernel;
  c.options.num_threads = 2;
  const Result<Problem> problem = make_problem(c.tensors, c.options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const Result<KernelTuning> tuning = kernel_tuning(problem.value(), t.device, c.options);
  if (!tuning.ok() && tuning.status().code() == StatusCode::unavailable) GTEST_SKIP() << tuning.status().message();
  ASSERT_TRUE(tuning.ok()) << tuning.status().message();
  const std::vector<std::string>& all = tuning->configurations;
  ASSERT_GT(all.size(), 2U);
  EXPECT_EQ(tuning->kernel, t.kernel);
  const std::size_t step = std::max<std::size_t>(1, all.size() / static_cast<std::size_t>(t.most));
  for (std::size_t n = 1; n < all.size(); n += step) {
    c.options.tuning = all[n];
    const Result<Plan> planned = plan(problem.value(), t.device, c.options);
    ASSERT_TRUE(planned.ok()) << all[n] << ": " << planned.status().message();
    for (const KernelParameter& parameter : planned->config().parameters) {
      EXPECT_EQ(parameter.source, "option") << planned->explain();
    }
    EXPECT_TRUE(verified(c, t.kernel, {t.device})) << all[n];
  }
}

INSTANTIATE_TEST_SUITE_P(All, Configurations,
                         ::testing::Values(Tuned{"cpu", "cpu.prefill.scalar", 300, 200, 20},
                                           Tuned{"cpu", "cpu.decode.scalar", 1, 3000, 20},
                                           Tuned{"emulated:gfx1100", "emulated.prefill.gfx11", 50, 70, 1},
                                           Tuned{"emulated:gfx942", "emulated.decode.cdna3", 1, 700, 1},
                                           Tuned{"emulated:sm_80", "emulated.prefill.sm80", 50, 70, 1},
                                           Tuned{"emulated:sm_80", "emulated.short.sm80", 50, 60, 1},
                                           Tuned{"emulated:sm_90a", "emulated.prefill_wgmma.sm90", 50, 70, 1},
                                           Tuned{"emulated:sm_90a", "emulated.prefill_tma.sm90", 50, 70, 1}));

TEST(TuningOption, IsRefusedWhereAKernelHasNoParameters) {
  const Tensor q = Tensor::bshd(nullptr, DType::fp32, 1, 64, 1, 64);
  AttentionOptions options;
  options.kernel = "cpu.short.scalar";
  options.tuning = "block_n=64";
  const Result<Problem> problem = make_problem({.q = q, .k = q, .v = q, .out = q}, options);
  ASSERT_TRUE(problem.ok());
  const Result<Plan> planned = plan(problem.value(), "cpu", options);
  EXPECT_EQ(planned.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(planned.status().message(),
            "options.tuning is \"block_n=64\": kernel \"cpu.short.scalar\" has no parameters for this problem");
}

TEST(TuningOption, OverLdsIsRefusedWithTheNumbers) {
  const Tensor q = Tensor::bshd(nullptr, DType::bf16, 1, 512, 1, 128);
  AttentionOptions options;
  options.kernel = "emulated.prefill.gfx11";
  options.tuning = "block_n=128,buffers=2";
  const Result<Problem> problem = make_problem({.q = q, .k = q, .v = q, .out = q}, options);
  ASSERT_TRUE(problem.ok());
  const Result<Plan> planned = plan(problem.value(), "emulated:gfx1100", options);
  if (planned.status().code() == StatusCode::unavailable) GTEST_SKIP() << planned.status().message();
  EXPECT_EQ(planned.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(planned.status().message().find("bytes of LDS are needed, gfx1100 has 65536"), std::string::npos)
      << planned.status().message();
}

}  // namespace
}  // namespace fulmen::testing
