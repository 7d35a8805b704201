#include "cpu/isa/neon_i8mm.h"

#include "quantized/code_sums.h"

namespace fulmen::testing {

void neon_i8mm_sums(const CodeSums& call) { code_sums<cpu::NeonI8mm>(call); }

}  // namespace fulmen::testing
