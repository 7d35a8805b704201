// A function's graph as source in the kernels' language: statements by the names of
// kernels/core/score_operations.h. Nothing of a user's text is in it.
#pragma once

#include <array>
#include <span>
#include <string>

#include "score/node.h"

namespace fulmen::score {

// How the source reaches a tensor's elements: expressions.
struct PrintedTensor {
  std::string data;     // its address
  const char* element;  // what is stored there
  int dims = 0;
  bool empty = false;  // it has no elements
  bool ahead = false;  // no stride is negative
  bool near = false;   // every element's distance from the first, in elements, fits in 32 bits
  std::array<std::string, kMaxArguments> extent, stride;
};

// The body of a function of `at` (a ScoredPair) that returns the graph's results, one or more. On
// one line: it is to be a macro. tensors: by their place in the list; those that no node loads are
// not looked at.
std::string print(const Graph& graph, std::span<const PrintedTensor> tensors);
// The same without what it returns: node i is called n{i}.
std::string statements(const Graph& graph, std::span<const PrintedTensor> tensors);
// An expression: the row-major place of the element that a load of the tensor reads, -1 out of
// range. indices: nodes, one a dim.
std::string place(const PrintedTensor& tensor, std::span<const int32_t> indices);

}  // namespace fulmen::score
