// Checks of score functions with their tensors, and of a block mask.
#pragma once

#include "fulmen/problem.h"

namespace fulmen {

// Parses the functions into the problem, whose pass is set. Errors: bad text, with line and column;
// a bad tensor.
Status check_functions(const AttentionTensors& tensors, const AttentionOptions& options,
                       Problem& problem);

// Before the table's tensors are checked: their shapes go by the sizes that this sets.
Status check_block_sizes(const AttentionTensors& tensors, const AttentionOptions& options,
                         Problem& problem);
// After: the lists come in pairs.
Status check_block_mask(const Problem& problem);

}  // namespace fulmen
