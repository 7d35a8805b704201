// What the units of a chip do a second, and how long work takes them.
#pragma once

#include <string>
#include <vector>

#include "fulmen/tensor.h"

namespace fulmen::tools {

// A product of a chip, by its maker's figures.
struct ChipRates {
  const char* arch;  // "sm_90a"
  const char* product;
  int compute_units;
  double ghz;
  // fp16 and bf16, sums in fp32, by the instructions that kernels of this arch have.
  double matrix_tflops;
  double memory_gb_s;
  double exponentials;   // a cycle and compute unit
  double vector;         // wave instructions a cycle and compute unit; 0: they are not counted
  double bf16_rate = 1;  // of fp16's matrix instructions
};
// Returns null if the model knows no product of the chip.
const ChipRates* chip_rates(const std::string& arch);
std::vector<std::string> modelled_chips();

// What a problem makes the units do.
struct UnitWork {
  double matrix_flops = 0;  // of matrix instructions, padding and masked scores included
  double exponentials = 0;  // of lanes
  double vector = 0;        // other vector instructions of waves
  double lds_cycles = 0;    // of 128 bytes, with bank conflicts
  double global_bytes = 0;  // read and written, whatever cache serves them
  double memory_bytes = 0;  // inputs and outputs, once
  double launches = 0;
  // Of AMD's machine code, for those who compare; the times do not depend on them.
  double scalar = 0, lds_conflicts = 0, waits = 0;
  int registers = 0;  // of a lane, the most of any launch
};

// Seconds that each unit is busy, and what launches take beside their work. vector_s: negative
// where nothing counts it.
struct UnitTimes {
  double matrix_s = 0, exponential_s = 0, vector_s = 0, lds_s = 0, cache_s = 0, memory_s = 0,
         launch_s = 0;
  double seconds = 0;
  std::string limit;  // "arithmetic"
};
UnitTimes unit_times(const UnitWork& work, const ChipRates& chip, DType dtype);

}  // namespace fulmen::tools
