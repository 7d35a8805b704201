// Sequences of different lengths and paged keys: what can be checked without the tensors' values.
#pragma once

#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// Sets batch, lengths, pages and the five TensorSpecs. p has heads and dims; q, k and v have passed
// check_view().
Status check_sequence_tensors(const AttentionTensors& tensors, const AttentionOptions& options,
                              Problem& p);
// What the backward pass does not take.
Status check_sequence_gradients(const AttentionTensors& tensors, const Problem& p);

}  // namespace fulmen
