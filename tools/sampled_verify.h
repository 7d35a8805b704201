// Verification of results whose whole reference would take minutes.
#pragma once

#include <string>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/reference.h"

namespace fulmen::tools {

struct SampledReport {
  VerifyReport report;     // the worst over the sample
  bool everything = true;  // false: a sample of batches, heads and query rows was compared
};

// Compares the whole result when that takes a fraction of a second, else the first, a middle and the last rows of some heads.
SampledReport verify_sampled(const Problem& problem, const AttentionTensors& tensors);

}  // namespace fulmen::tools
