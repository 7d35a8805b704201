// Functions that say what options say: conjuncts of a mask_mod that are causal masks or windows,
// and a score_mod that is a softcap. Kernels get the options, and of the functions what is left.
#pragma once

#include <string>

#include "fulmen/problem.h"

namespace fulmen {

// The same attention for kernels. A caller's problem keeps its function: options of runs and other
// sizes are applied to that, and the reference evaluates it.
Problem for_kernels(const Problem& problem);

// What for_kernels() changed, for people; empty: nothing.
std::string options_of_functions(const Problem& problem, const Problem& for_kernels);

}  // namespace fulmen
