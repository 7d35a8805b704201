// Running a case on kernels forced by name.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/attention_case.h"

namespace fulmen::testing {

// The CPU kernels that support the problem, by name.
std::vector<std::string> kernels_for(const Problem& problem);

// Plans with options.kernel = kernel, checks that this is what was planned, poisons the outputs and runs in a guarded workspace of
// exactly the size that the plan asks for.
Status run_kernel(Case& c, const std::string& kernel, AttentionOptions options);
inline Status run_kernel(Case& c, const std::string& kernel) { return run_kernel(c, kernel, c.options); }

// Runs, then checks the result by the tolerance rule and that no gap was written.
::testing::AssertionResult verified(Case& c, const std::string& kernel);

// EXPECTs verified() for every kernel that supports the case; returns how many there were.
int expect_all_kernels_verified(Case& c);

}  // namespace fulmen::testing
