// CDNA1 and CDNA2: int8 codes are multiplied by v_mfma_i32_16x16x16i8. A[i][k]: i = l % 16,
// k = 4 (l / 16) + e (4 codes); B the same; D[i][j]: i = 4 (l / 16) + e, j = l % 16.
#pragma once

#include "targets/mfma_lanes.h"
#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/emulated_mfma.h"
#endif

namespace fulmen::kernels {

// d: bits of sums of int8 codes.
#if defined(FULMEN_PLATFORM_EMULATED)
FULMEN_DEVICE void mfma_i32_16x16x16(float (&d)[4], const Words<1>& a, const Words<1>& b,
                                     Position at = Position::here()) {
  mfma_codes("mfma_i32_16x16x16", d, a, b, at);
}
#else
typedef int Sums4 __attribute__((ext_vector_type(4)));
FULMEN_DEVICE void mfma_i32_16x16x16(float (&d)[4], const Words<1>& a, const Words<1>& b) {
  const Float4 sums = {d[0], d[1], d[2], d[3]};
  const Float4 c = __builtin_bit_cast(
      Float4,
      __builtin_amdgcn_mfma_i32_16x16x16i8(static_cast<int>(a.word[0]), static_cast<int>(b.word[0]),
                                           __builtin_bit_cast(Sums4, sums), 0, 0, 0));
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}
#endif

// int8 codes of kCodeMmaK dims: the order of dims is free, so that a lane's are neighbours.
constexpr int kCodeMmaK = kTileMmaK;
constexpr int kCodeWords = 2;
FULMEN_DEVICE int code_dim() { return 8 * (lane_id() / 16); }
template <int kSums>
FULMEN_DEVICE void multiply_codes(float (&sums)[kSums], const Words<kCodeWords>& keys,
                                  const Words<kCodeWords>& queries) {
#pragma unroll
  for (int w = 0; w < kCodeWords; ++w)
    mfma_i32_16x16x16(sums, Words<1>{{keys.word[w]}}, Words<1>{{queries.word[w]}});
}

}  // namespace fulmen::kernels

#include "targets/no_e4m3.h"
