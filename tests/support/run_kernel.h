// Running a case on kernels forced by name.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reference/verify/expected.h"
#include "support/attention_case.h"

namespace fulmen::testing {

// Where a case runs.
struct Where {
  std::string device = "cpu";
  // Elements by which each tensor begins after an aligned address, on devices with memory of their
  // own.
  std::size_t shift = 0;
};

// The device's kernels that support the problem, by name.
std::vector<std::string> kernels_for(const Problem& problem, const std::string& device = "cpu");

// Plans with options.kernel = kernel, checks that this kernel was planned, poisons the outputs and
// runs in a guarded workspace of exactly the size that the plan asks for. On a device with memory
// of its own it runs on copies, and checks that neither inputs nor guards changed.
Status run_kernel(Case& c, const std::string& kernel, AttentionOptions options,
                  const Where& where = {});
inline Status run_kernel(Case& c, const std::string& kernel, const Where& where = {}) {
  return run_kernel(c, kernel, c.options, where);
}

// Runs, then checks the result by the tolerance rule and that no gap was written. expected: null,
// or one for all kernels of the case, whose inputs stay what they are.
::testing::AssertionResult verified(Case& c, const std::string& kernel, const Where& where = {},
                                    reference::Expected* expected = nullptr);

// EXPECTs verified() for every kernel that supports the case; returns how many there were.
int expect_all_kernels_verified(Case& c, const Where& where = {});

// A caller's ParallelFor: on the calling thread, the last task first; any order is allowed.
void run_in_reverse(void* context, int64_t count, void (*task)(void*, int64_t), void* arg);
// The same with a thread for each task. context: null, or an std::atomic<int> that counts calls.
void run_on_threads(void* context, int64_t count, void (*task)(void*, int64_t), void* arg);

}  // namespace fulmen::testing
