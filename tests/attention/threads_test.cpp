// Results do not depend on who computes them: thread counts, a caller's own pool, several callers
// at once.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

std::vector<CaseSpec> thread_specs(Random& random) {
  std::vector<CaseSpec> specs;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t seqlen_q : {1, 64, 150}) {
      CaseSpec spec;
      spec.dtype = dtype;
      spec.batch = random.pick<int64_t>({1, 3});
      spec.seqlen_q = seqlen_q;
      spec.seqlen_k = seqlen_q == 1 ? 4321 : seqlen_q;
      spec.num_kv_heads = 2;
      spec.num_heads = 6;
      spec.head_dim = spec.head_dim_v = random.pick<int64_t>({32, 64, 80});
      spec.causal = random.pick({Causal::none, Causal::bottom_right});
      spec.bias = random.chance(0.3);
      specs.push_back(spec);
    }
  }
  return specs;
}

TEST(Threads, ResultsAreBitEqualForAnyNumberAndPool) {
  Random random(400);
  for (const CaseSpec& spec : thread_specs(random)) {
    Case c(spec, random);
    for (const std::string& kernel : kernels_for(c.problem())) {
      AttentionOptions options = c.options;
      options.num_threads = 1;
      ASSERT_TRUE(run_kernel(c, kernel, options).ok());
      const std::vector<float> out = c.out_values();
      const std::vector<float> lse = c.lse_values();
      for (const int threads : {0, 1, 2, 3, 7}) {
        options.num_threads = threads;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        EXPECT_TRUE(same_bits(c.out_values(), out) && same_bits(c.lse_values(), lse))
            << kernel << " on " << threads << " threads " << to_string(spec);
      }
      std::atomic<int> calls{0};
      for (const ParallelFor pool :
           {ParallelFor{run_in_reverse, nullptr}, ParallelFor{run_on_threads, &calls}}) {
        options.parallel_for = pool;
        options.num_threads = 3;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        EXPECT_TRUE(same_bits(c.out_values(), out) && same_bits(c.lse_values(), lse))
            << kernel << " in a caller's pool " << to_string(spec);
      }
      EXPECT_GE(calls.load(), 1) << kernel << " did not use the caller's pool";
    }
  }
}

TEST(Threads, OnePlanFromSeveralThreadsAtOnce) {
  constexpr int kCallers = 4;
  constexpr int kRepeats = 5;
  Random random(401);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const int64_t seqlen_q : {1, 100}) {
      CaseSpec spec;
      spec.dtype = dtype;
      spec.seqlen_q = seqlen_q;
      spec.seqlen_k = 300;
      spec.num_heads = 4;
      spec.num_kv_heads = 2;
      spec.head_dim = spec.head_dim_v = 64;
      std::vector<Case> cases;
      for (int caller = 0; caller < kCallers; ++caller) cases.emplace_back(spec, random);
      for (const std::string& kernel : kernels_for(cases[0].problem())) {
        AttentionOptions options = cases[0].options;
        options.kernel = kernel;
        const Result<Plan> planned = plan(cases[0].problem(), "cpu", options);
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        std::vector<std::vector<float>> alone;
        for (Case& c : cases) {
          ASSERT_TRUE(run_kernel(c, kernel).ok());
          alone.push_back(c.out_values());
          c.poison_outputs();
        }
        std::atomic<int> failures{0};
        std::vector<std::thread> callers;
        for (int caller = 0; caller < kCallers; ++caller) {
          callers.emplace_back([&, caller] {
            Case& mine = cases[static_cast<std::size_t>(caller)];
            const GuardedBuffer workspace((planned->workspace_bytes() + 63) / 64 * 64);
            for (int repeat = 0; repeat < kRepeats; ++repeat) {
              mine.poison_outputs();
              const Status status =
                  planned->run(nullptr, mine.tensors,
                               workspace.size() > 0 ? workspace.data() : nullptr, workspace.size());
              if (!status.ok() ||
                  !same_bits(mine.out_values(), alone[static_cast<std::size_t>(caller)]))
                failures.fetch_add(1);
            }
          });
        }
        for (std::thread& caller : callers) caller.join();
        EXPECT_EQ(failures.load(), 0) << kernel << ' ' << to_string(spec);
      }
    }
  }
}

TEST(Threads, RepeatedRunsAreBitEqual) {
  Random random(402);
  for (int n = 0; n < 5; ++n) {
    Case c(random_spec(random), random);
    for (const std::string& kernel : kernels_for(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      const std::vector<float> out = c.out_values();
      for (int repeat = 0; repeat < 3; ++repeat) {
        ASSERT_TRUE(run_kernel(c, kernel).ok());
        EXPECT_TRUE(same_bits(c.out_values(), out)) << kernel << ' ' << to_string(c.spec);
      }
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
