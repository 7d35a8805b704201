// Which of a backend's kernels a plan has.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fulmen/backend.h"

namespace fulmen {

// Kernels that could not be prepared, and why.
using RefusedKernels = std::vector<std::pair<const Kernel*, std::string>>;

// The kernel of this name, or the best one where the name is empty. Errors: invalid_argument for a
// name that the device does not have, unsupported where no kernel, or not this one, takes the
// problem.
Result<const Kernel*> kernel_for(const Problem& problem, const std::string& device,
                                 const Backend& backend, const std::string& name);
// The kernel of the highest rank that supports the problem, the first registered among equals, none
// of those refused; null where there is none.
const Kernel* best_kernel(const Backend& backend, const Problem& problem, const std::string& device,
                          const RefusedKernels& refused);

}  // namespace fulmen
