// Tuned results on disk, as plans read them. `fulmen tune` writes them; docs/guide/tuning.md has the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/status.h"

namespace fulmen::tuning {

struct TunedResult {
  std::string kernel, problem_class, build, configuration;
  int compute_units = 0;
};

inline constexpr int kResultsVersion = 1;

// Any bytes are safe. Errors: no JSON, another version, another chip's, an entry that lacks something.
Result<std::vector<TunedResult>> parse_results(std::string_view text, std::string_view chip);

// What this user's file says for a kernel and problem: a configuration, or "" and why the one that is there is not used ("" where
// there is none). The file is read once a process; one that cannot be used is said in a line in the log. Quick where there is none.
struct FoundResult {
  std::string configuration, why_not;
};
FoundResult own_result(const KernelTuning& identity);
bool has_own_results();
// Reads the files again: for tests.
void forget_own_results();

// The chip as a file's name.
std::string file_name_of(std::string_view chip);
// What of a problem decides which configuration is fastest: lengths and work rounded up to powers of two.
std::string problem_class(const Problem& problem);

}  // namespace fulmen::tuning
