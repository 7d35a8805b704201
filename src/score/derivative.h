// Symbolic derivatives of a score function, by its score and by the elements of tensors that it
// reads: reverse mode over the graph, each partial derivative once.
#pragma once

#include <cstdint>
#include <vector>

#include "score/builder.h"

namespace fulmen::score {

// What one load of a tensor adds to the tensor's gradient.
struct LoadGradient {
  int32_t load = 0;  // the node, whose arguments are the indices
  int32_t by = 0;    // the value's derivative by the element
};

struct Derivatives {
  int32_t by_score = 0;
  std::vector<LoadGradient> loads;  // of the tensors that are wanted, in the order of the nodes
};

// value: a float. wanted[t]: whether tensor t has a gradient. Nodes are added to the builder, which
// is then to be asked whether it is full.
Derivatives differentiate(Builder& builder, int32_t value, const std::vector<bool>& wanted);

}  // namespace fulmen::score
