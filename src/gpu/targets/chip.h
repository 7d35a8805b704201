// The chips that kernels are compiled for: the rows of all targets (this folder).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpu/targets/target.h"

namespace fulmen::gpu {

struct Chip : ChipFacts {
  Vendor vendor;
  const Target* target;  // its matrix instructions, and the tile shapes of its kernels

  // Returns true if kernels for the target run on it.
  bool runs(const Target& other) const {
    return other.is_portable() || &other == target || &other == target->extends;
  }
};

// Every chip with a row of its own: those that tests emulate and that `fulmen compile --all`
// reports. AMD's by name, then NVIDIA's by number.
const std::vector<Chip>& chips();

// The row of an architecture as a driver names it: "gfx1100", "gfx90a:sramecc+:xnack-", "sm_90". A
// chip without a row gets that of the nearest one below it (sm_90 is served as sm_80), or a
// portable one; its arch is the asked one. Null for names that are none. The arch of the result
// points into `storage`.
bool find_chip(std::string_view arch, std::string& storage, Chip& chip);

}  // namespace fulmen::gpu
