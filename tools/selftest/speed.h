// How fast a device is on three problems, beside what it can do at best.
#pragma once

#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

struct SpeedRow {
  std::string problem, kernel;
  double seconds = 0;  // the median of several spans
  double tflops = 0, gigabytes_per_second = 0;
  bool ok = false;  // a sample of the result was compared with the oracle
  std::string message;
};

struct Yardstick {
  std::string what;
  double value = 0;
  std::string unit;
};

// Empty for emulated devices, which have no times.
std::vector<SpeedRow> measure_speed(const std::string& device);
// Measures memory's rate, and that of a GPU's matrix instructions or a CPU's arithmetic with all
// threads.
std::vector<Yardstick> measure_yardsticks(const std::string& device);

}  // namespace fulmen::tools
