// The tolerance rule for gradients.
#pragma once

#include "fulmen/reference.h"

namespace fulmen::reference {

// Throws std::bad_alloc.
VerifyReport verify_gradients(const Problem& problem, const AttentionTensors& tensors);

}  // namespace fulmen::reference
