// append_kv() on a device against plain loops in double precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

struct AppendResult {
  std::string problem;
  bool ok = false;
  double worst_error = 0;  // as a share of what rounding may cost
  std::string message;     // when not ok
};

// Checks padded and paged caches, with and without a rotary embedding.
constexpr int kAppendProblems = 4;
AppendResult check_append(const std::string& device, int problem);

}  // namespace fulmen::tools
