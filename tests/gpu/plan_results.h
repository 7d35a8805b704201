// A family's plan that no device of the machine would get, such as one for another number of
// compute units, run on an emulated device.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gpu/launch/family.h"
#include "support/attention_case.h"

namespace fulmen::testing {

::testing::AssertionResult plan_gives_right_results(Case& c, const std::string& device,
                                                    gpu::LaunchPlan plan);

}  // namespace fulmen::testing
