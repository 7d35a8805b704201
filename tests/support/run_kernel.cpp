#include "support/run_kernel.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "plan/registry.h"
#include "reference/verify/verify.h"
#include "support/device_copy.h"

namespace fulmen::testing {
namespace {

// Kernels that tests compile are kept in the build folder.
[[maybe_unused]] const bool kCacheIsSet = ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 0) == 0;

Status run_on_host(const Plan& plan, const Case& c) {
  // So that its start is aligned as the contract says.
  const std::size_t bytes = (plan.workspace_bytes() + 63) / 64 * 64;
  const GuardedBuffer workspace(bytes);
  // NaN in every dtype: scratch must not be read before it is written.
  if (bytes > 0) std::memset(workspace.data(), 0xFF, bytes);
  return plan.run(nullptr, c.tensors, bytes > 0 ? workspace.data() : nullptr, bytes);
}

Status run_on_copies(const Plan& plan, const Case& c, const Backend& backend, std::size_t shift) {
  const auto there = DeviceCopy::make(plan.device(), c.tensors, shift, plan.problem().pass);
  if (!there.ok()) return there.status();
  const Result<void*> workspace = there.value()->make_workspace(plan.workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  Status status =
      plan.run(nullptr, there.value()->tensors(), workspace.value(), plan.workspace_bytes());
  if (status.ok()) status = backend.synchronize(plan.device(), nullptr);
  if (status.ok()) status = there.value()->download();
  if (!status.ok()) return status;
  const std::string damage = there.value()->damage();
  return damage.empty() ? Status{} : Status{StatusCode::internal, damage};
}

// Every third case runs by a plan for more sequences than it has, or for more keys, where the
// kernel runs those.
Result<Plan> plan_for(const Case& c, const Problem& problem, const std::string& device,
                      const AttentionOptions& options) {
  const std::size_t drawn = std::hash<std::string>{}(to_string(c.spec)) % 6;
  if (!problem.packed_q() && !problem.packed_k() && problem.seqlen_k > 0) {
    AttentionOptions range = options;
    Problem larger = problem;
    // One sequence has batch strides of 0: more of it would share an output, which dropout tells
    // apart.
    range.vary_batch = drawn == 0 && (problem.batch > 1 || problem.dropout == 0);
    range.vary_seqlen_k = drawn == 1 && !problem.variable_lengths();
    if (range.vary_batch) larger.batch += 3;
    if (range.vary_seqlen_k) {
      larger.seqlen_k += 5;
      if (!larger.top_left) larger.diagonal += 5;
    }
    Result<Plan> planned = plan(larger, device, range);
    if (planned.ok() || planned.status().code() != StatusCode::unsupported) return planned;
  }
  return plan(problem, device, options);
}

}  // namespace

std::vector<std::string> kernels_for(const Problem& problem, const std::string& device) {
  std::vector<std::string> names;
  const Result<std::vector<Candidate>> all = candidates(problem, device);
  if (!all.ok()) {
    ADD_FAILURE() << all.status().message();
    return names;
  }
  for (const Candidate& candidate : all.value()) {
    if (candidate.support.yes) {
      names.push_back(candidate.kernel);
    } else {
      EXPECT_FALSE(candidate.support.reason.empty())
          << candidate.kernel << " refuses without a reason";
    }
  }
  return names;
}

Status run_kernel(Case& c, const std::string& kernel, AttentionOptions options,
                  const Where& where) {
  options.kernel = kernel;
  Result<Problem> problem = c.spec.backward ? make_backward_problem(c.tensors, options)
                                            : make_problem(c.tensors, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan_for(c, problem.value(), where.device, options);
  if (!planned.ok()) return planned.status();
  if (planned->config().kernel != kernel)
    return {StatusCode::internal, "asked for " + kernel + ", got " + planned->config().kernel};
  c.poison_outputs();
  const auto backend = backend_of(where.device);
  return backend->uses_host_memory() ? run_on_host(planned.value(), c)
                                     : run_on_copies(planned.value(), c, *backend, where.shift);
}

::testing::AssertionResult verified(Case& c, const std::string& kernel, const Where& where,
                                    reference::Expected* expected) {
  const auto failure = [&](const std::string& what) {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string filter =
        test == nullptr ? "*" : std::string(test->test_suite_name()) + "." + test->name();
    return ::testing::AssertionFailure()
           << kernel << " on " << where.device << ": " << what << "\n  " << to_string(c.spec)
           << "\n  repeat it: FULMEN_TEST_SEED=" << test_seed() << " " << program_invocation_name
           << " --gtest_filter=" << filter;
  };
  if (const Status status = run_kernel(c, kernel, where); !status.ok())
    return failure(status.message());
  const auto report = reference::verify(c.problem(), c.tensors, {}, expected);
  if (!report.ok()) return failure(report.status().message());
  if (!report->ok) return failure(report->message);
  if (const std::string stray = c.stray_writes(); !stray.empty()) return failure(stray);
  return ::testing::AssertionSuccess();
}

int expect_all_kernels_verified(Case& c, const Where& where) {
  c.make_inputs_read_only();
  const std::vector<std::string> kernels = kernels_for(c.problem(), where.device);
  reference::Expected expected;
  for (const std::string& kernel : kernels) EXPECT_TRUE(verified(c, kernel, where, &expected));
  return static_cast<int>(kernels.size());
}

void run_in_reverse(void* /*context*/, int64_t count, void (*task)(void*, int64_t), void* arg) {
  for (int64_t index = count - 1; index >= 0; --index) task(arg, index);
}

void run_on_threads(void* context, int64_t count, void (*task)(void*, int64_t), void* arg) {
  if (context != nullptr) static_cast<std::atomic<int>*>(context)->fetch_add(1);
  std::vector<std::thread> threads;
  for (int64_t index = 0; index < count; ++index) threads.emplace_back(task, arg, index);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fulmen::testing
