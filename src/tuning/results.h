// Tuned results on disk, as plans read them. `fulmen tune` writes them; docs/guide/tuning.md has
// the format.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/status.h"

namespace fulmen::tuning {

struct TunedResult {
  std::string kernel, problem_class, build, configuration;
  int compute_units = 0;
  std::string product{}, driver{}, compiler{};  // as of KernelTuning; empty: any
};

inline constexpr int kResultsVersion = 1;

// Any bytes are safe. Errors: no JSON, another version, another chip's, an entry that lacks
// something.
Result<std::vector<TunedResult>> parse_results(std::string_view text, std::string_view chip);

// The results of a chip: this user's own, and those that come with the library.
struct ChipResults {
  std::vector<TunedResult> own, shipped;
  bool has(std::string_view kernel) const;
};
// A chip by its name, alive as long as the process: who plans often for one looks it up once.
struct KnownChip {
  std::string name;
  std::atomic<const ChipResults*> results = nullptr;  // null: not read yet
};
KnownChip& known_chip(std::string_view name);
// Read at the first call for the chip, once a process; a file that cannot be used is said in a line
// in the log.
const ChipResults& results_of(KnownChip& chip);
// For tests: files are read again; these texts stand for the files that come with the library, by
// the chip.
void forget_results();
void ship_instead(std::map<std::string, std::string, std::less<>> texts);

// What a list says for a kernel and problem: a configuration, or "" and why the one that is there
// is not used ("" where there is none). with_other_software: results that were measured with
// another compiler or driver do, and `note` says so.
struct FoundResult {
  std::string configuration, why_not, note{};
};
FoundResult find_result(const std::vector<TunedResult>& results, const KernelTuning& identity,
                        bool with_other_software);

// The chip as a file's name.
std::string file_name_of(std::string_view chip);
// What of a problem decides which configuration is fastest: lengths and work rounded up to powers
// of two.
std::string problem_class(const Problem& problem);

}  // namespace fulmen::tuning
