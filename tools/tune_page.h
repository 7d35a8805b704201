// What tuning found, as a page with plots.
#pragma once

#include <string>
#include <vector>

#include "tune_device.h"

namespace fulmen::tools {

std::string tuned_page(const std::vector<TunedProblem>& tuned);

}  // namespace fulmen::tools
