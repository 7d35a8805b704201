// Counts of launches as JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/amd/run_kernel/launch.h"

namespace fulmen::run_kernel {

// An array, an object a launch.
std::string report(const std::vector<RanLaunch>& launches);

}  // namespace fulmen::run_kernel
