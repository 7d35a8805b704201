// A case of tests/support on a device with memory of its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/attention_case.h"

namespace fulmen::testing {

// Kernels of the device that support the problem, by name; every other one has a reason.
std::vector<std::string> kernels_on(const std::string& device, const Problem& problem);

// Runs one kernel on copies in the device's memory that begin `shift` elements after an aligned address, outputs poisoned, and
// fetches out and lse.
Status run_on(const std::string& device, Case& c, const std::string& kernel, std::size_t shift = 0);

// Runs, then checks the result by the tolerance rule and that no gap was written.
::testing::AssertionResult verified_on(const std::string& device, Case& c, const std::string& kernel, std::size_t shift = 0);

}  // namespace fulmen::testing
