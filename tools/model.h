// How long a case would take on a chip: what the emulator counts on a small case, scaled, over what the chip's units do a second.
#pragma once

#include <string>
#include <vector>

#include "bench_cases.h"
#include "fulmen/status.h"

namespace fulmen::tools {

// A product of a chip, by its maker's figures.
struct ChipRates {
  const char* arch;  // "sm_90a"
  const char* product;
  int compute_units;
  double ghz;
  double matrix_tflops;  // fp16 and bf16, sums in fp32, by the instructions that kernels of this arch have
  double memory_gb_s;
  double exponentials;  // of a compute unit, a cycle
};
// Null: the model knows no product of the chip.
const ChipRates* chip_rates(const std::string& arch);
std::vector<std::string> modelled_chips();

struct ModelledRow {
  BenchCase bench_case;
  std::string kernel;  // its name and parameters
  // Seconds that each unit is busy.
  double matrix_s = 0, exponential_s = 0, lds_s = 0, cache_s = 0, memory_s = 0;
  double seconds = 0;
  std::string limit;  // "matrix units and exponentials"
  double flops = 0, bytes = 0;
};

// device: "emulated:<chip>". Errors: a device or case that the model does not take, with the reason; the emulator's.
Result<ModelledRow> model_case(const BenchCase& bench_case, const std::string& device, const std::string& kernel);

std::string model_head(const ChipRates& chip);
std::string model_line(const ModelledRow& row);

}  // namespace fulmen::tools
