// Functions of a text over the tables of random_expression.h.
#pragma once

#include <string>
#include <vector>

#include "score/elements.h"
#include "score/functions.h"
#include "support/random_expression.h"

namespace fulmen::testing {

inline Result<ScoreFunctions> functions_of(const std::string& score_mod,
                                           const std::string& mask_mod, bool gradients = false) {
  std::vector<ScoreFunctions::Tensor> tensors(2);
  tensors[0] = {
      .name = "table", .dims = 2, .shape = {5, 7}, .strides = {7, 1}, .has_gradient = gradients};
  tensors[1] = {.name = "numbers", .dims = 1, .dtype = DType::int32, .shape = {16}, .strides = {1}};
  return score::make_functions(score_mod, mask_mod, tensors, gradients);
}

struct TableElements {
  score::Elements of[2];
  explicit TableElements(const Tables& tables)
      : of{{tables.table, DType::fp32, 2, {5, 7}, {7, 1}},
           {tables.numbers, DType::int32, 1, {16}, {1}}} {}
};

inline score::PairOf<double> pair_of(const Pair& p) {
  return {p.score, static_cast<int32_t>(p.b), static_cast<int32_t>(p.h), static_cast<int32_t>(p.q),
          static_cast<int32_t>(p.k)};
}

// Any, small ones and far ones.
inline Pair random_pair(Random& random) {
  const int64_t most = random.chance(0.5) ? 20 : 100000;
  return {random.normal(), random.between(0, 3), random.between(0, 6), random.between(0, most),
          random.between(0, most)};
}

}  // namespace fulmen::testing
