// What an access of a wave to LDS costs. A model: 32 banks of 4 bytes, 128 bytes a cycle. An
// instruction takes its lanes in their order, as many at a time as fill the banks: 32 with 4 bytes
// each, 16 with 8, 8 with 16. Those that want different words of one bank wait for each other.
// (AMD's RDNA 3 and CDNA 3 and NVIDIA's documents give banks and width; that lanes are taken in
// order is known of NVIDIA's chips, and assumed of AMD's.) CDNA 4 reads from 64 banks, in an order
// of lanes that was measured (docs/internals/amd_facts.md); its 256 bytes count as two cycles.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/targets/target.h"

namespace fulmen::gpu {

struct LdsCost {
  int64_t instructions = 0;  // wave instructions
  int64_t cycles = 0;        // conflicts included
  int64_t conflicts = 0;     // cycles lost because lanes meet in a bank

  LdsCost& operator+=(const LdsCost& other) {
    instructions += other.instructions;
    cycles += other.cycles;
    conflicts += other.conflicts;
    return *this;
  }
};

// The cost of one instruction of a wave, whose lane l accesses `bytes` bytes at offsets[l], or
// kNoAccess. At most 64 lanes. Compilers make several instructions of more than 16 bytes, and of 16
// where an offset is a multiple of 8 only. reads: how the chip serves it; writes have 32 banks
// everywhere.
constexpr int kNoAccess = -1;
LdsCost cost_of(std::span<const int> offsets, int bytes, const LdsReads& reads = {});

}  // namespace fulmen::gpu
