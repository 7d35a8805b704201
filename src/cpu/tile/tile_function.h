// What the tasks of a call know of its score functions: plain data, shared by the code compiled for
// every instruction set.
#pragma once

#include <cstdint>

#include "cpu/tile/pairs_call.h"
#include "cpu/tile/tile.h"
#include "fulmen/problem.h"
#include "score/bytecode.h"
#include "score/elements.h"
#include "score/functions.h"

namespace fulmen::cpu {

// Keys whose pairs are computed together: a register of them is 1 KiB.
constexpr int kFunctionKeys = 4;
constexpr int kPairElements = kFunctionKeys * kBlockM;
// Elements of a register, by its rank, multiples of kFunctionStep.
constexpr int kFunctionStep = 16;
constexpr int64_t kRankElements[score::kRanks] = {kFunctionStep, kBlockM, kMaxBlockN,
                                                  kBlockM + kMaxBlockN, kPairElements};

FULMEN_INLINE int64_t register_floats(const score::Bytecode& code) {
  int64_t floats = 0;
  for (int rank = 0; rank < score::kRanks; ++rank)
    floats += code.registers[rank] * kRankElements[rank];
  return floats;
}

// One function of a call; a task's registers are in its scratch.
struct TileFunction {
  const score::Bytecode* code = nullptr;  // null: there is none
  const score::Elements* tensors = nullptr;
  PairsFunction pairs = nullptr;  // the bytecode's pairs as machine code; null: there is none
  const PairsTensor* pair_tensors = nullptr;

  bool any() const { return code != nullptr; }
};

// Whether scores go through score_mod, and whether gradients of its tensors are wanted.
FULMEN_INLINE bool has_score_function(const Problem& problem) {
  return problem.functions.impl() != nullptr && problem.functions.impl()->has_score();
}
// Whether scores and rows' maxima are in natural units: a bias of fp32's range and score_mod give
// scores of any size.
FULMEN_INLINE bool in_natural_units(const Problem& problem) {
  return (problem.bias.present && problem.bias.dtype != DType::fp16) || has_score_function(problem);
}
FULMEN_INLINE bool has_function_gradients(const Problem& problem) {
  return problem.functions.impl() != nullptr && problem.functions.impl()->with_gradients &&
         !problem.functions.impl()->loads.empty();
}

// Floats of a task's scratch for the registers of any of the problem's functions, one at a time.
FULMEN_INLINE int64_t function_floats(const Problem& problem) {
  const ScoreFunctions::Impl* functions = problem.functions.impl();
  if (functions == nullptr) return 0;
  int64_t most = 0;
  for (const score::Bytecode* code :
       {&functions->score_code, &functions->mask_code, &functions->gradient_code}) {
    const int64_t floats = register_floats(*code);
    most = floats > most ? floats : most;
  }
  return most;
}

// Where a tile's pairs are: of one head, from a query and a key on.
struct FunctionPlace {
  int64_t batch = 0, head = 0, row = 0, key = 0;
};

}  // namespace fulmen::cpu
