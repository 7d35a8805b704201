// What the tolerance rule compares a result with.
#pragma once

#include <vector>

namespace fulmen::reference {

// It depends on the inputs alone: where several kernels compute the same call, it is computed once.
// Most of a test's time on CPUs went to the oracle, again for each kernel.
struct Expected {
  bool known = false;  // what follows is there; else verify() fills it in
  // Forward. Of each element [batch, num_heads, seqlen_q, head_dim_v]: the oracle's, R of
  // docs/contract.md without the rounding of the output, and standard attention's.
  std::vector<double> out, rounding;
  std::vector<float> standard;
  struct Row {
    double lse = 0, magnitude = 0, lse_rounding = 0;
  };
  std::vector<Row> rows;  // [batch, num_heads, seqlen_q]
  // Backward, of each gradient: the oracle's, standard attention's, and squares of what roundings
  // may do.
  struct Gradient {
    std::vector<double> exact, squares;
    std::vector<float> standard;
  };
  std::vector<Gradient> gradients;
};

}  // namespace fulmen::reference
