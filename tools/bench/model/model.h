// How long a case would take on a chip: what the emulators count on small cases, scaled, over what
// the chip's units do a second.
#pragma once

#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "tools/bench/cases.h"

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

struct ModelledRow {
  BenchCase bench_case;
  Pass pass = Pass::forward;
  std::string kernel;  // its name and parameters
  // Seconds that each unit is busy, and what launches take beside their work. vector_s: negative
  // where nothing counts it.
  double matrix_s = 0, exponential_s = 0, vector_s = 0, lds_s = 0, cache_s = 0, memory_s = 0,
         launch_s = 0;
  double seconds = 0;
  std::string limit;  // "arithmetic"
  double flops = 0, bytes = 0;
};

// device: "emulated:<chip>". options: kernel and deterministic. Errors: a device or case that the
// model does not take, with the reason; the emulators'.
Result<ModelledRow> model_case(const BenchCase& bench_case, Pass pass, const std::string& device,
                               const AttentionOptions& options);

}  // namespace fulmen::tools
