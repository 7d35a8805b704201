// A problem of a few rows that runs the same kernels as a given one, with its tensors in host
// memory.
#pragma once

#include <cstddef>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen::gpu {

// The most that a small problem has of each; what the given one has less of stays.
struct SmallSizes {
  int64_t batch, seqlen_q, seqlen_k;
  int64_t kv_heads = 2, group = 2;
};

// The same dtypes, head dims, options and optional tensors. Dims that broadcast do so, strides are
// multiples of 8 where the given ones are, and lengths differ from sequence to sequence where they
// may.
Problem small_problem(const Problem& problem, const SmallSizes& sizes);

// Random inputs for a small problem, and outputs of NaN.
class SmallTensors {
 public:
  // The backward pass gets out and lse from the reference. Errors: those of attention_reference().
  Status make(const Problem& problem, const AttentionOptions& options);
  AttentionTensors tensors;

 private:
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace fulmen::gpu
