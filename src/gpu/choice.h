// Which family of GPU kernels runs: the order of preference, the only place with ranks.
// docs/choosing.md says it in tables.
#pragma once

#include <span>
#include <string_view>

#include "gpu/launch/family.h"

namespace fulmen::gpu {

struct Preference {
  std::string_view family;
  double rank;
  bool (*when)(const Target& target, const Problem& problem);
};

// Forward, then backward, each best first. A family's rank is that of its first row whose condition
// holds.
std::span<const Preference> preferences();

// The family with the highest rank runs, among those that support a problem; a tie goes to the
// first of families().
double rank(const Family& family, const Problem& problem);

}  // namespace fulmen::gpu
