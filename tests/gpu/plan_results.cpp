#include "gpu/plan_results.h"

#include <utility>

#include "fulmen/reference.h"
#include "gpu/device_list.h"
#include "gpu/gpu_runner.h"
#include "support/device_copy.h"

namespace fulmen::testing {

::testing::AssertionResult plan_gives_right_results(Case& c, const std::string& device,
                                                    gpu::LaunchPlan plan) {
  const auto failed = [](const std::string& message) {
    return ::testing::AssertionFailure() << message;
  };
  const gpu::Device* const found = gpu::DeviceList(gpu::emulated_driver()).find(device);
  if (found == nullptr) return failed("no device " + device);
  std::erase_if(plan.launches,
                [](const gpu::KernelLaunch& launch) { return launch.workgroups == 0; });
  const Problem p = c.problem();
  gpu::GpuRunner runner(gpu::emulated_driver(), *found, p, std::move(plan), KernelConfig{"a plan"},
                        true);
  if (const Status status = runner.load(); !status.ok()) return failed(status.message());
  const auto there = DeviceCopy::make(device, c.tensors, 0, p.pass);
  if (!there.ok()) return failed(there.status().message());
  const Result<void*> workspace = there.value()->make_workspace(runner.workspace_bytes());
  if (!workspace.ok()) return failed(workspace.status().message());
  if (const Status status = runner.run(nullptr, there.value()->tensors(), workspace.value());
      !status.ok())
    return failed(status.message());
  if (const Status status = there.value()->download(); !status.ok())
    return failed(status.message());
  const VerifyReport report = verify_result(p, c.tensors);
  return report.ok ? ::testing::AssertionSuccess() : failed(report.message);
}

}  // namespace fulmen::testing
