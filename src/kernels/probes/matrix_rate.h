// Probe: the rate of matrix instructions alone. Each wave multiplies `count` times kChains tiles
// that wait for nothing but their own sums. in: two words, pairs of numbers. out: [kElements],
// which only sums that never occur are stored to.
#include "probes/probe.h"

namespace fulmen::kernels {

constexpr int kChains = 8;

FULMEN_DEVICE void matrix_rate(const ProbeArguments& a) {
  const auto* in = static_cast<const unsigned*>(a.in);
  RowOperand keys, queries;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const unsigned k = global_load(in), q = global_load(in + 1);
    keys.piece[p] = {{k, k, k, k}};
    queries.piece[p] = {{q, q, q, q}};
  }
  float sums[kChains][kElements] = {};
  for (Int64 n = 0; n < a.count; ++n) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) multiply_scores<Bfloat16>(sums[c], keys, queries);
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += sums[c][e];
  }
  if (sum == -1.0F) answer(a, lane_id() % kElements, float_bits(sum));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::matrix_rate)
