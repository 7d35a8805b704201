// Score functions as C++ source: what the evaluator does for each pair, for the host's compiler.
#pragma once

#include <span>
#include <string>

#include "fulmen/score_functions.h"
#include "score/bytecode.h"

namespace fulmen::cpu {

// The whole source of a shared object, of embedded headers and the code's instructions; its
// PairsFunction is called kPairsSymbol. numbers: the instruction set's ("Avx2Numbers"). No text of
// the caller's is in it. Where a tensor lies, and its extents and strides, are not in it either.
std::string pairs_source(const score::Bytecode& code,
                         std::span<const ScoreFunctions::Tensor> tensors, const char* numbers);
inline constexpr const char* kPairsSymbol = "fulmen_pairs";

}  // namespace fulmen::cpu
