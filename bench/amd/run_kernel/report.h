// Counts of launches as JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/amd/run_kernel/launch.h"

namespace fulmen::run_kernel {

// An object a launch and, where the description says what they compute and the model knows the
// chip, the time that they would take (tools/bench/model/rates.h).
std::string report(const Description& description, const std::vector<RanLaunch>& launches);

}  // namespace fulmen::run_kernel
