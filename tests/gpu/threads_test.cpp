// Several threads at a device: they plan the same problem at once, then share one plan.
#include <algorithm>
#include <functional>
#include <thread>

#include "gpu/gpu_devices.h"
#include "plan/registry.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr int kThreads = 4;

class GpuThreads : public GpuTest {};

void in_threads(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) threads.emplace_back(work, n);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(GpuThreads, PlanAtOnceAndShareAPlan) {
  Random random(7900);
  CaseSpec spec;
  spec.dtype = DType::bf16;
  spec.seqlen_q = 40;
  spec.seqlen_k = 200;
  spec.num_heads = spec.num_kv_heads = 2;
  spec.head_dim = spec.head_dim_v = 72;  // unique: not compiled or loaded before
  const Case c(spec, random);
  std::vector<Result<Plan>> plans(kThreads, Status(StatusCode::internal, "not planned"));
  in_threads([&](int n) { plans[static_cast<std::size_t>(n)] = plan(c.problem(), device()); });
  for (const Result<Plan>& planned : plans) ASSERT_TRUE(planned.ok()) << planned.status().message();

  // Each thread has its own tensors, half of them at addresses for which a plan loads a second
  // kernel when it first meets them.
  Random same(7910);
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<std::unique_ptr<DeviceCopy>> copies;
  for (int n = 0; n < kThreads; ++n) {
    cases.push_back(std::make_unique<Case>(spec, same));
    auto made = DeviceCopy::make(device(), cases.back()->tensors, static_cast<std::size_t>(n % 2));
    ASSERT_TRUE(made.ok()) << made.status().message();
    copies.push_back(std::move(made).value());
  }
  const Plan& shared = plans.front().value();
  std::vector<void*> workspaces;
  for (const auto& copy : copies) {
    const Result<void*> workspace = copy->make_workspace(shared.workspace_bytes());
    ASSERT_TRUE(workspace.ok()) << workspace.status().message();
    workspaces.push_back(workspace.value());
  }
  std::vector<Status> status(kThreads);
  in_threads([&](int n) {
    const auto at = static_cast<std::size_t>(n);
    for (int round = 0; round < 3 && status[at].ok(); ++round) {
      status[at] =
          shared.run(nullptr, copies[at]->tensors(), workspaces[at], shared.workspace_bytes());
    }
    if (status[at].ok()) status[at] = backend_of(device())->synchronize(device(), nullptr);
  });
  for (int n = 0; n < kThreads; ++n) {
    const auto at = static_cast<std::size_t>(n);
    ASSERT_TRUE(status[at].ok()) << status[at].message();
    ASSERT_TRUE(copies[at]->download().ok());
    EXPECT_EQ(copies[at]->damage(), "");
    const VerifyReport report = verify_result(cases[at]->problem(), cases[at]->tensors);
    EXPECT_TRUE(report.ok) << "thread " << n << ": " << report.message;
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuThreads,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

}  // namespace
}  // namespace fulmen::testing
