#include "support/run_kernel.h"

#include <cstring>

namespace fulmen::testing {

std::vector<std::string> kernels_for(const Problem& problem) {
  std::vector<std::string> names;
  const Result<std::vector<Candidate>> all = candidates(problem, "cpu");
  if (!all.ok()) {
    ADD_FAILURE() << all.status().message();
    return names;
  }
  for (const Candidate& candidate : all.value()) {
    if (candidate.support.yes) {
      names.push_back(candidate.kernel);
    } else {
      EXPECT_FALSE(candidate.support.reason.empty()) << candidate.kernel << " refuses without a reason";
    }
  }
  return names;
}

Status run_kernel(Case& c, const std::string& kernel, AttentionOptions options) {
  options.kernel = kernel;
  Result<Problem> problem = make_problem(c.tensors, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(problem.value(), "cpu", options);
  if (!planned.ok()) return planned.status();
  if (planned->config().kernel != kernel)
    return {StatusCode::internal, "asked for " + kernel + ", got " + planned->config().kernel};
  c.poison_outputs();
  const std::size_t bytes = (planned->workspace_bytes() + 63) / 64 * 64;  // so that its start is aligned as the contract says
  const GuardedBuffer workspace(bytes);
  if (bytes > 0) std::memset(workspace.data(), 0xFF, bytes);  // NaN in every dtype: scratch must not be read before it is written
  return planned->run(nullptr, c.tensors, bytes > 0 ? workspace.data() : nullptr, bytes);
}

::testing::AssertionResult verified(Case& c, const std::string& kernel) {
  const Status status = run_kernel(c, kernel);
  if (!status.ok()) return ::testing::AssertionFailure() << kernel << ": " << status.message() << "\n  " << to_string(c.spec);
  const VerifyReport report = verify_result(c.problem(), c.tensors);
  if (!report.ok) return ::testing::AssertionFailure() << kernel << ": " << report.message << "\n  " << to_string(c.spec);
  const std::string stray = c.stray_writes();
  if (!stray.empty()) return ::testing::AssertionFailure() << kernel << ": " << stray << "\n  " << to_string(c.spec);
  return ::testing::AssertionSuccess();
}

int expect_all_kernels_verified(Case& c) {
  c.make_inputs_read_only();
  const std::vector<std::string> kernels = kernels_for(c.problem());
  for (const std::string& kernel : kernels) EXPECT_TRUE(verified(c, kernel));
  return static_cast<int>(kernels.size());
}

}  // namespace fulmen::testing
