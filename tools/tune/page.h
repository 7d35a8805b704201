// What tuning found, as a page with plots.
#pragma once

#include <string>
#include <vector>

#include "tools/tune/device.h"

namespace fulmen::tools {

std::string tuned_page(const std::vector<TunedProblem>& tuned);

}  // namespace fulmen::tools
