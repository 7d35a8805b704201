// The kernels that people meet: what `fulmen compile` compiles and reports.
#pragma once

#include <vector>

#include "fulmen/problem.h"
#include "gpu/launch/specialisation.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

// The kernels that are shipped, without duplicates. `all`: every tile shape, dtype and kind of
// mask; else the main ones.
std::vector<Specialisation> shipped_kernels(const Chip& chip, bool all);

// The kernels of ordinary problems with every feature and with every two: masks, biases, slopes,
// sinks, dropout, packed sequences, odd rows.
std::vector<Specialisation> pair_kernels(const Chip& chip);

// The kernels of common_calls(): what packages of prebuilt kernels have.
std::vector<Specialisation> common_kernels(const Chip& chip);

// The kernels of the best family for each problem, without duplicates.
std::vector<Specialisation> kernels_of(const std::vector<Problem>& problems, const Chip& chip);

}  // namespace fulmen::gpu
