// What the units of a chip do for the instructions that a launch executes: the input of models of
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

struct Work {
  uint64_t matrix_flops = 0;   // of matrix instructions, whatever their operands are used for
  uint64_t exponentials = 0;   // lanes of transcendental instructions, those that are off included
  uint64_t lds_cycles = 0;     // with bank conflicts (emulator/lds_cost.h)
  uint64_t lds_conflicts = 0;  // of them
  uint64_t global_bytes = 0;   // of lanes that are on: loads, stores and atomics
  std::map<std::string, uint64_t, std::less<>> matrix;  // matrix instructions by name

  Work& operator+=(const Work& other);
};

// Adds what the instruction, which has not run yet, makes the units do.
void add_work(const Wave& wave, const Instruction& instruction, Work& work);

}  // namespace fulmen::gpu::isa
