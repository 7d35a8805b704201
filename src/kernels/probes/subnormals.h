// Probe: whether matrix instructions take subnormal operands as they are. in: four words, a pair of
// subnormal numbers and the pair that multiplies them, fp16 then bf16. out: [2][kWaveSize], the
// bits of a sum of kMmaK products.
#include "probes/probe.h"

namespace fulmen::kernels {

FULMEN_DEVICE RowOperand filled(unsigned pair) {
  RowOperand operand;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) operand.piece[p] = {{pair, pair, pair, pair}};
  return operand;
}

template <class T>
FULMEN_DEVICE void subnormal_sum(const ProbeArguments& a, int first) {
  const auto* in = static_cast<const unsigned*>(a.in);
  const RowOperand small = filled(global_load(in + 2 * first)),
                   large = filled(global_load(in + 2 * first + 1));
  float sums[kElements] = {};
  multiply_scores<T>(sums, small, large);
  answer(a, first * kWaveSize + lane_id(), float_bits(sums[0]));
}

FULMEN_DEVICE void subnormals(const ProbeArguments& a) {
  subnormal_sum<Half>(a, 0);
  subnormal_sum<Bfloat16>(a, 1);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::subnormals)
