// A run of a problem of the grid on a device, and the verdict of the tolerance rule.
#pragma once

#include <string>

#include "fulmen/fulmen.h"
#include "tools/tensors/device_tensors.h"
#include "tools/verify/grid.h"

namespace fulmen::tools {

struct VerifiedRun {
  Status ran;           // why there is no result
  VerifyReport report;  // not ok, with that reason, where it did not run
  KernelConfig config;  // the kernel that ran
};

// Poisons what the pass writes, runs it and compares; the outputs are then in the data's own
// tensors. kernel: empty chooses.
VerifiedRun run_and_verify(const Problem& problem, const GridData& data, const DeviceTensors& there,
                           const std::string& device, const std::string& kernel, int threads);

}  // namespace fulmen::tools
