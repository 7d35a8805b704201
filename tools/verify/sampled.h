// Verification of results whose whole reference would take minutes.
#pragma once

#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/reference.h"

namespace fulmen::tools {

struct SampledReport {
  VerifyReport report;     // the worst over the sample
  bool everything = true;  // false: a sample of batches, heads and query rows was compared
};

// Compares the whole result when that takes a fraction of a second, or where the problem has score
// functions or a block mask; else the first, a middle and the last rows of some heads.
SampledReport verify_sampled(const Problem& problem, const AttentionTensors& tensors);

// Compares gradients: some KV heads with all that belongs to them. Heads that are too long for that
// have dq alone compared, in some rows.
SampledReport verify_gradients_sampled(const Problem& problem, const AttentionTensors& tensors);
// Returns true if verify_gradients_sampled compares a KV head's dk, dv and bias gradient, which
// take all of its queries.
bool gradients_are_affordable(const Problem& problem);

}  // namespace fulmen::tools
