// verify_result() for callers that tell a result that is wrong from a check that could not be made.
#pragma once

#include "fulmen/reference.h"
#include "fulmen/status.h"
#include "reference/verify/expected.h"

namespace fulmen::reference {

// Errors: those of check_sequences(); num_threads; out_of_memory; internal, of a caller's
// parallel_for. expected: null, or of this problem with these inputs; what is not known yet is
// filled in.
Result<VerifyReport> verify(const Problem& problem, const AttentionTensors& tensors,
                            const AttentionOptions& options, Expected* expected = nullptr);

}  // namespace fulmen::reference
