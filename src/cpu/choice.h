// Which family of CPU kernels runs: the order of preference, the only place with ranks.
// docs/choosing.md says it in tables.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// The rank is that of the row plus the instruction set's preference, so that the fastest set of a
// family comes first.
struct Preference {
  std::string_view family;
  double rank;
  bool (*when)(const IsaTable& set, const Problem& problem);
  bool same_for_all_sets = false;  // the preference is not added
};

// Best first. A family's rank is that of its first row whose condition holds.
std::span<const Preference> preferences();

// The kernel with the highest rank runs, among those that support a problem; a tie goes to the
// first registered.
double rank(std::string_view family, const InstructionSet& isa, const Problem& problem);

// Query rows that share a KV head; the most of the type where they are more than it holds.
int64_t shared_rows(const Problem& problem);

}  // namespace fulmen::cpu
