// The benchmark's rows as a page with plots.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/measure/measure.h"

namespace fulmen::tools {

// Time, rates and memory by length, head_dim and batch, a roofline, and all rows in a table. about:
// the device, in words.
std::string bench_page(const std::vector<BenchRow>& rows, const std::string& about);

}  // namespace fulmen::tools
