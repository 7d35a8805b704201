// Problems from what FLASH_ATTENTION_DEBUG=1 prints: a line a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"
#include "tools/tune/problems.h"

namespace fulmen::tools {

struct LogProblems {
  std::vector<TuneProblem> problems;  // each once, in the log's order
  std::vector<std::string> left_out;  // "line 7: ...": cannot be read, or has what tuning does not
                                      // make; each reason once
};

// Lines that name no problem are passed over: a log has a program's own lines, too. Any bytes are
// safe. Errors, with `path`: no problem is left.
Result<LogProblems> problems_of_log(std::string_view text, const std::string& path);

}  // namespace fulmen::tools
