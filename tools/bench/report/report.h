// The benchmark's rows as lines of text, JSON and CSV.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/measure/measure.h"

namespace fulmen::tools {

// "12.3 us", "-" for 0.
std::string time_text(double seconds);
std::string bytes_text(std::size_t bytes);
std::string table_head();
std::string table_line(const BenchRow& row);
// A list of objects with the same fields in each; what was not measured is null.
std::string json_report(const std::vector<BenchRow>& rows);
std::string csv_report(const std::vector<BenchRow>& rows);

}  // namespace fulmen::tools
