// Two of the benchmark's JSON reports side by side.
#pragma once

#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

enum class Verdict : int { same, faster, slower, wrong, missing, added, not_timed };

struct ComparedRow {
  std::string name;
  double a = 0, b = 0;  // seconds of the fastest repetitions; 0: not timed
  double ratio = 0;     // b / a
  double noise = 0;     // a ratio within 1 +- noise says nothing: median over minimum, at least 1 %
  Verdict verdict = Verdict::not_timed;
};

// Rows of the same case, in A's order, then those that B alone has. Errors: a text is no report;
// names say whose.
Result<std::vector<ComparedRow>> compare_reports(const std::string& a, const std::string& name_a,
                                                 const std::string& b, const std::string& name_b);
std::string comparison_table(const std::vector<ComparedRow>& rows);
// verification_failed where a row of B is slower, wrong or missing.
Status comparison_status(const std::vector<ComparedRow>& rows);

}  // namespace fulmen::tools
