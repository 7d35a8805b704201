// The softcap in a score function: where score_mod is what the option `softcap` is, it becomes that
// option, which kernels compute faster.
#pragma once

#include "fulmen/problem.h"
#include "fulmen/score_functions.h"
#include "score/node.h"

namespace fulmen::score {

// The largest softcap that the option takes: kernels compute tanh by exponentials, with an absolute
// error of up to 1e-6 that the softcap multiplies. Above, that is more than a result may be off.
// Models have 15 to 50.
constexpr float kMostSoftcap = 1000;
// The smallest: the scale is divided by it in fp32.
constexpr float kLeastSoftcap = 1e-18F;

// The c of a function `c * tanh(score / c)`, its factors in any order, `/ c` as a product with the
// reciprocal, too; 0 where it is anything else, or c is more than the option's largest.
float softcap_of(const Graph& score_mod) noexcept;

// The same of a problem's score_mod, 0 where a softcap, a bias or ALiBi comes before it.
float softcap_of_function(const Problem& problem) noexcept;

// The same functions without score_mod. Without any where nothing is left for a kernel to do.
ScoreFunctions without_score(const ScoreFunctions& functions);

}  // namespace fulmen::score
