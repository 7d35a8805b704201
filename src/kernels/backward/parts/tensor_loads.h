// What score_mod reads of the tensors whose gradients are asked for: the host prints it
// (gpu/launch/tensor_gradients.cpp) as FULMEN_TENSOR_LOADS, how many elements are read for a pair,
// FULMEN_LOADED_TENSORS and FULMEN_LOAD_RANKS, of each its tensor and what its place depends on,
// and FULMEN_TENSOR_GRADIENTS, the body of a function.
#pragma once

#include "core/score_functions.h"

#if !defined(FULMEN_TENSOR_LOADS)
#define FULMEN_TENSOR_LOADS 1
#define FULMEN_LOADED_TENSORS 0
#define FULMEN_LOAD_RANKS 0
#define FULMEN_TENSOR_GRADIENTS return {at.score, {1.0F}, {0}};
#endif

namespace fulmen::kernels {

constexpr int kLoads = FULMEN_TENSOR_LOADS;

// What the place of a loaded element depends on beside batch and head.
enum class LoadRank { none, query, key, pair };
// What load n has. These are functions, as NVRTC has no arrays of the host in device code.
FULMEN_ALGORITHM int loaded_tensor(int n) {
  constexpr int kTensors[] = {FULMEN_LOADED_TENSORS};
  return kTensors[n];
}
FULMEN_ALGORITHM LoadRank load_rank(int n) {
  constexpr int kRanks[] = {FULMEN_LOAD_RANKS};
  return static_cast<LoadRank>(kRanks[n]);
}
FULMEN_ALGORITHM bool some_load_has(LoadRank rank) {
  for (int n = 0; n < kLoads; ++n) {
    if (load_rank(n) == rank) return true;
  }
  return false;
}

// What score_mod gives for a pair, its derivatives by the elements, and the elements' row-major
// places in their tensors, -1 where an index is out of range.
struct TensorLoads {
  float score;
  float by[kLoads];
  int place[kLoads];
};
FULMEN_DEVICE TensorLoads tensor_loads([[maybe_unused]] const FunctionTensors& tensors,
                                       const ScoredPair& at) {
  using namespace score_operations;
  FULMEN_TENSOR_GRADIENTS
}

}  // namespace fulmen::kernels
