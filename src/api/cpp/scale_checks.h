// Rules of k_scale, v_scale and q_scale that the table of tensors does not say.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// Of the forward pass.
Status check_scales(const AttentionTensors& tensors, const Problem& problem);
// The backward pass has k and v of q's dtype alone, without scales.
Status check_unquantized(const Problem& problem);

}  // namespace fulmen
