// verify_result() for callers that tell a result that is wrong from a check that could not be made.
#pragma once

#include "fulmen/reference.h"
#include "fulmen/status.h"

namespace fulmen::reference {

// Errors: those of check_sequences(); num_threads; out_of_memory; internal, of a caller's
// parallel_for.
Result<VerifyReport> verify(const Problem& problem, const AttentionTensors& tensors,
                            const AttentionOptions& options);

}  // namespace fulmen::reference
