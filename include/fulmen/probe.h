// What only a device itself can tell: answers of tiny kernels to questions that manuals leave open,
// and how fast its matrix instructions are.
#pragma once

#include <string>
#include <vector>

#include "fulmen/export.h"
#include "fulmen/status.h"

namespace fulmen {

struct HardwareProbe {
  std::string name;     // "subnormals"
  std::string decides;  // what of the kernels relies on the answer
  bool probed = false;
  bool as_expected = false;  // where it was probed: the kernels rely on this answer
  std::string found;         // the answer in words, or why the device was not asked
};

// One of each question, in the same order for every device. Compiles and runs a kernel for each
// that the device can be asked; on a GPU in its default stream, for which the call waits. Errors:
// no such device, or it cannot be used.
FULMEN_API Result<std::vector<HardwareProbe>> probe_hardware(const std::string& device);

// Matrix instructions with nothing else to wait for, on the whole device: the best of several runs.
struct MatrixRate {
  double tflops = 0;        // 1e12 flops a second; a multiply-add is two
  std::string instruction;  // "bf16 products of gfx11"
};
// Errors: those of probe_hardware(); unsupported, where there are no such kernels or times mean
// nothing (CPUs, emulated devices).
FULMEN_API Result<MatrixRate> matrix_rate(const std::string& device);

}  // namespace fulmen
