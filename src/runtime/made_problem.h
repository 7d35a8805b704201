// A Problem by make_problem or make_backward_problem, or an empty one.
#pragma once

#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// Error for a Problem that neither make_problem nor make_backward_problem gave: kernels need not
// expect it.
Status check_made(const Problem& problem);

}  // namespace fulmen
