// The tensors of a run's score functions beside those of its plan.
#pragma once

#include <cstddef>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "runtime/memory_range.h"

namespace fulmen {

// Names, dtypes, dims, shapes and strides, in the plan's order. A tensor with a pointer alone, all
// else zeros, is the plan's. Errors: the first one that differs.
Status check_function_tensors(const Problem& problem, const AttentionTensors& tensors);

// Addresses; gradients and `other` lie apart, and gradients from all inputs of functions. Errors:
// null or misaligned pointers, overlaps. tensors: checked by the function above.
Status check_function_memory(const Problem& problem, const AttentionTensors& tensors);
// Whether a written range lies apart from the functions' tensors, and their gradients from it where
// it is only read.
Status check_apart(const Problem& problem, const AttentionTensors& tensors,
                   const MemoryRange& range, bool written);

}  // namespace fulmen
