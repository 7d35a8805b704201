// score_mod and mask_mod of a call, which the host prints as the bodies of these functions
// (score/source.h): FULMEN_SCORE_MOD, its derivative FULMEN_SCORE_GRADIENT, and FULMEN_MASK_MOD.
#pragma once

#include "core/config.h"
#include "core/score_operations.h"

#if !defined(FULMEN_SCORE_MOD)
#define FULMEN_SCORE_MOD return at.score;
#endif
#if !defined(FULMEN_SCORE_GRADIENT)
#define FULMEN_SCORE_GRADIENT return {1.0F, at.score};
#endif
#if !defined(FULMEN_MASK_MOD)
#define FULMEN_MASK_MOD return true;
#endif

namespace fulmen::kernels {

// What the functions are given of a pair. The score is in natural units.
struct ScoredPair {
  float score;
  int batch, head, query, key;
};
// score_mod's derivative by the score, and its value.
struct ModifiedScore {
  float by_score, score;
};

// A function's tensors as its printed body reads them.
FULMEN_DEVICE float printed_score_mod([[maybe_unused]] const FunctionTensors& tensors,
                                      const ScoredPair& at) {
  using namespace score_operations;
  FULMEN_SCORE_MOD
}
FULMEN_DEVICE ModifiedScore printed_score_gradient([[maybe_unused]] const FunctionTensors& tensors,
                                                   const ScoredPair& at) {
  using namespace score_operations;
  FULMEN_SCORE_GRADIENT
}
FULMEN_DEVICE bool mask_mod([[maybe_unused]] const FunctionTensors& tensors,
                            [[maybe_unused]] const ScoredPair& at) {
  using namespace score_operations;
  FULMEN_MASK_MOD
}

// A score of -inf, of a bias, stays.
FULMEN_DEVICE float score_mod(const ForwardArguments& a, const ScoredPair& at) {
  const float score = printed_score_mod(a.functions, at);
  return at.score == -kInfinity ? at.score : score;
}
FULMEN_DEVICE ModifiedScore score_gradient_mod(const ForwardArguments& a, const ScoredPair& at) {
  const ModifiedScore modified = printed_score_gradient(a.functions, at);
  const bool stays = at.score == -kInfinity;
  return {stays ? 1.0F : modified.by_score, stays ? at.score : modified.score};
}

}  // namespace fulmen::kernels
