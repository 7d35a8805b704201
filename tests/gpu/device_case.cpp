#include "gpu/device_case.h"

#include <cstring>

#include "tools/device_tensors.h"

namespace fulmen::testing {

std::vector<std::string> kernels_on(const std::string& device, const Problem& problem) {
  std::vector<std::string> names;
  const Result<std::vector<Candidate>> all = candidates(problem, device);
  if (!all.ok()) {
    ADD_FAILURE() << all.status().message();
    return names;
  }
  for (const Candidate& candidate : all.value()) {
    if (candidate.support.yes) names.push_back(candidate.kernel);
    EXPECT_NE(candidate.support.yes, !candidate.support.reason.empty()) << candidate.kernel << ": yes, or a reason";
  }
  return names;
}

Status run_on(const std::string& device, Case& c, const std::string& kernel, std::size_t shift) {
  AttentionOptions options = c.options;
  options.kernel = kernel;
  const Result<Plan> planned = plan(c.problem(), device, options);
  if (!planned.ok()) return planned.status();
  if (planned->config().kernel != kernel)
    return {StatusCode::internal, "asked for " + kernel + ", got " + planned->config().kernel};
  c.poison_outputs();
  const auto there = tools::DeviceTensors::make(device, c.tensors, shift);
  if (!there.ok()) return there.status();
  // Fresh memory of an emulated device is poison: scratch must not be read before it is written.
  const tools::DeviceMemory workspace = there.value()->workspace(planned->workspace_bytes());
  Status status = planned->run(nullptr, there.value()->tensors(), workspace.data(), planned->workspace_bytes());
  if (status.ok()) status = there.value()->synchronize();
  return status.ok() ? there.value()->download() : status;
}

::testing::AssertionResult verified_on(const std::string& device, Case& c, const std::string& kernel, std::size_t shift) {
  const auto failure = [&](const std::string& what) {
    return ::testing::AssertionFailure() << kernel << " on " << device << ": " << what << "\n  " << to_string(c.spec);
  };
  if (const Status status = run_on(device, c, kernel, shift); !status.ok()) return failure(status.message());
  if (const VerifyReport report = verify_result(c.problem(), c.tensors); !report.ok) return failure(report.message);
  if (const std::string stray = c.stray_writes(); !stray.empty()) return failure(stray);
  return ::testing::AssertionSuccess();
}

}  // namespace fulmen::testing
