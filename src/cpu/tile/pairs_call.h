// What compiled code of a score function is given. Embedded as text: it includes nothing of the
// library.
#pragma once

#include <cstdint>

namespace fulmen::cpu {

struct PairsTensor {
  const void* data;
  int64_t shape[4], strides[4];  // of its dims
};

struct PairsCall {
  float* const* registers;  // of each rank, as the evaluator has them
  const PairsTensor* tensors;
  const float* scores;  // [kFunctionKeys][kBlockM], or null
  int key;              // the first, in the tile
  int last_key;         // of the tile, rounded up to whole groups
};

// Computes what the bytecode computes for the pairs of kFunctionKeys keys.
using PairsFunction = void (*)(const PairsCall&);

}  // namespace fulmen::cpu
