// The instruction sets this library was compiled with, and which of them this processor has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/isa/table.h"

namespace fulmen::cpu {

struct InstructionSet {
  const IsaTable* table = nullptr;
  int preference = 0;        // higher is faster
  bool available = false;    // on this processor, under this operating system
  std::string_view missing;  // what it lacks when not available
  // Decode fetches whole blocks into L2, in several streams, and short sequences (not on matrix
  // tiles) whole batch elements, or in the backward pass several heads, not what comes next into
  // L1: faster here, and its table's code can.
  bool fetch_blocks = false;
  // Short sequences whose call is bigger than the caches fetch whole batch elements, through L1
  // (cpu/short/kernel.cpp).
  bool fetch_batches = false;
};

// In order of registration; fixed for the life of the process.
const std::vector<InstructionSet>& instruction_sets();

// Names of sets that this processor has and this build has no code of, " " between them.
const std::string& sets_left_out();

std::string chip_name();

// Bytes of one core's L2 cache; 0 where the system does not tell.
int64_t level2_cache_bytes();

}  // namespace fulmen::cpu
