// The tolerance rule for gradients.
#pragma once

#include "fulmen/reference.h"
#include "runtime/threading.h"

namespace fulmen::reference {

// Throws std::bad_alloc, and what run_workers does.
VerifyReport verify_gradients(const Problem& problem, const AttentionTensors& tensors,
                              const cpu::ThreadSettings& threads);

}  // namespace fulmen::reference
