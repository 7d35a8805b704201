// Two files of `fulmen counts --json` side by side: numbers of instructions, which no noise is in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

enum class CountVerdict : int { same, fewer, more, missing, added };

struct ComparedCounts {
  std::string kernel;     // "gfx1100 prefill gfx11 bf16 d64 128x32"
  int64_t a = 0, b = 0;   // instructions of a launch, of all its waves; 0: it is not in the file
  std::string changed{};  // the class that changed most: "vector 34780 -> 36100"
  CountVerdict verdict = CountVerdict::same;
};

// Returns true if a text is such a file, or may be a damaged one: not a report of times.
bool are_counts(const std::string& text);
// Launches of the same chip, problem and number, in A's order, then those that B alone has. More
// than 2 % of all instructions is a change, and so are spills where there were none. Errors: a text
// is no such file; names say whose.
Result<std::vector<ComparedCounts>> compare_counts(const std::string& a, const std::string& name_a,
                                                   const std::string& b, const std::string& name_b);
std::string counts_table(const std::vector<ComparedCounts>& rows);
// verification_failed, naming them, where launches of B execute more instructions or are missing.
Status counts_status(const std::vector<ComparedCounts>& rows);

}  // namespace fulmen::tools
