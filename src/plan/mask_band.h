// The band of a mask_mod: where conjuncts of it say what causal masks and windows say, kernels get
// these, and of the function what is left.
#pragma once

#include <string>

#include "fulmen/problem.h"

namespace fulmen {

// The same attention for kernels. A caller's problem keeps its function: options of runs and other
// sizes are applied to that, and the reference evaluates it.
Problem for_kernels(const Problem& problem);

// What for_kernels() changed, for people; empty: nothing.
std::string band_of_mask_mod(const Problem& problem, const Problem& for_kernels);

}  // namespace fulmen
