// The tolerance rule for gradients.
#pragma once

#include "fulmen/reference.h"
#include "reference/verify/expected.h"
#include "runtime/threading.h"

namespace fulmen::reference {

// Throws std::bad_alloc, and what run_workers does. expected: as verify() has it.
VerifyReport verify_gradients(const Problem& problem, const AttentionTensors& tensors,
                              const cpu::ThreadSettings& threads, Expected* expected);

}  // namespace fulmen::reference
