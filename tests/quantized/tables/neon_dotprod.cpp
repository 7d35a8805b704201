#include "cpu/isa/neon_dotprod.h"

#include "quantized/code_sums.h"

namespace fulmen::testing {

void neon_dotprod_sums(const CodeSums& call) { code_sums<cpu::NeonDotprod>(call); }

}  // namespace fulmen::testing
