// The instruction sets this library was compiled with, and which of them this processor has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/forward_call.h"

namespace fulmen::cpu {

struct InstructionSet {
  const IsaTable* table = nullptr;
  int preference = 0;        // higher is faster
  bool available = false;    // on this processor, under this operating system
  std::string_view missing;  // what it lacks when not available
};

// In order of registration; fixed for the life of the process.
const std::vector<InstructionSet>& instruction_sets();

// Whether memory is read faster by fetching whole blocks into L2, in several streams, than what comes next into L1.
bool fetches_blocks();

std::string chip_name();

}  // namespace fulmen::cpu
