// CDNA3 and CDNA4: int8 codes are multiplied by v_mfma_i32_16x16x32_i8. A[i][k]: i = l % 16,
// k = 8 (l / 16) + e (8 codes); B the same; D[i][j]: i = 4 (l / 16) + e, j = l % 16.
#pragma once

#include "targets/mfma_lanes.h"
#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/emulated_mfma.h"
#endif

namespace fulmen::kernels {

// d: bits of sums of int8 codes.
#if defined(FULMEN_PLATFORM_EMULATED)
FULMEN_DEVICE void mfma_i32_16x16x32(float (&d)[4], const Words<2>& a, const Words<2>& b,
                                     Position at = Position::here()) {
  mfma_codes("mfma_i32_16x16x32", d, a, b, at);
}
#else
typedef int Sums4 __attribute__((ext_vector_type(4)));
FULMEN_DEVICE void mfma_i32_16x16x32(float (&d)[4], const Words<2>& a, const Words<2>& b) {
  const Float4 sums = {d[0], d[1], d[2], d[3]};
  const Float4 c =
      __builtin_bit_cast(Float4, __builtin_amdgcn_mfma_i32_16x16x32_i8(
                                     __builtin_bit_cast(long, a), __builtin_bit_cast(long, b),
                                     __builtin_bit_cast(Sums4, sums), 0, 0, 0));
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}
#endif

// int8 codes of kCodeMmaK dims.
constexpr int kCodeMmaK = kTileMmaK;
constexpr int kCodeWords = 2;
FULMEN_DEVICE int code_dim() { return 8 * (lane_id() / 16); }
template <int kSums>
FULMEN_DEVICE void multiply_codes(float (&sums)[kSums], const Words<kCodeWords>& keys,
                                  const Words<kCodeWords>& queries) {
  mfma_i32_16x16x32(sums, keys, queries);
}

}  // namespace fulmen::kernels
