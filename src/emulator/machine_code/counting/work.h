// What the units of a chip do for the instructions that a launch executes: the input of models of
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

// An instruction that a wave executed, in the wave's order.
struct TraceStep {
  uint32_t instruction = 0;  // in Program::code
  uint32_t cycles = 0;       // of LDS; of memory, at 64 bytes a cycle
  bool by_lds = false;       // a flat access that memory has no part of
};

struct Work {
  uint64_t matrix_flops = 0;   // of matrix instructions, whatever their operands are used for
  uint64_t exponentials = 0;   // lanes of transcendental instructions, those that are off included
  uint64_t lds_cycles = 0;     // with bank conflicts (emulator/lds_cost.h)
  uint64_t lds_conflicts = 0;  // of them
  uint64_t global_bytes = 0;   // of lanes that are on: loads, stores and atomics
  std::map<std::string, uint64_t, std::less<>> matrix;   // matrix instructions by name
  std::vector<std::vector<TraceStep>>* trace = nullptr;  // by wave; null: not wanted

  Work& operator+=(const Work& other);
};

// Adds what the instruction, which has not run yet, makes the units do.
void add_work(const Wave& wave, const Instruction& instruction, Work& work);

}  // namespace fulmen::gpu::isa
