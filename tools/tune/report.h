// Reports of what tuning found, for people and programs.
#pragma once

#include <string>
#include <vector>

#include "tools/tune/device.h"

namespace fulmen::tools {

// Returns a line a candidate, the fastest first; all of them, or the best few.
std::string table_of(const TunedProblem& tuned, bool all);
// Returns a line a problem: what tuning gained.
std::string summary_of(const std::vector<TunedProblem>& tuned, bool emulated);
std::string tuned_json(const std::vector<TunedProblem>& tuned);
std::string tuned_csv(const std::vector<TunedProblem>& tuned);

// The files of results in an export, each chip's. Errors: no list of such files.
Result<std::vector<std::vector<TuneRecord>>> parse_export(const std::string& text,
                                                          const std::string& path);

}  // namespace fulmen::tools
