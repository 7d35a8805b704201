// Baselines as kernels that can be forced by name: "cpu.standard.blas", "cpu.standard.plain",
// "cpu.reference.double"; and for gradients "cpu.standard.backward" and "cpu.reference.backward".
#pragma once

#include <vector>

#include "fulmen/backend.h"

namespace fulmen::reference {

std::vector<const Kernel*> baseline_kernels();

}  // namespace fulmen::reference
