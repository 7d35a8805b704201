// Gradients of the tensors that a score_mod reads: launches of kernels/backward/tensor_gradients.h
// beside a backward family's own.
#pragma once

#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/backend.h"
#include "fulmen/problem.h"
#include "kernels/core/arguments.h"

namespace fulmen::gpu {

// Returns true if the gradient of a tensor is asked for, read by a function or not.
bool has_tensor_gradients(const Problem& problem);
// Elements of all these gradients.
int64_t tensor_gradient_elements(const Problem& problem);
// Yes if the launches give the gradients that are asked for; else why not.
Support takes_tensor_gradients(const Problem& problem);
// Returns true if score_mod reads such a tensor: the others' gradients are 0.
bool loads_have_gradients(const Problem& problem);
// Definitions for kernels/backward/parts/tensor_loads.h.
std::string tensor_loads_source(const Problem& problem);
// What the launches cost, for explain().
std::string tensor_gradients_note(const Problem& problem);

void set_tensor_gradients(const Problem& problem, const AttentionTensors& tensors, float* sums,
                          kernels::TensorGradients& to);

}  // namespace fulmen::gpu
