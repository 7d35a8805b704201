// CDNA3 and CDNA4: codes of E4M3 are multiplied by v_mfma_f32_16x16x32_fp8_fp8, in the lanes of
// mfma_i32_16x16x32.h. CDNA3's codes are FNUZ (kFnuzCodes).
#pragma once

#include "targets/mfma_lanes.h"
#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/emulated_mfma.h"
#endif

namespace fulmen::kernels {

#if defined(FULMEN_PLATFORM_EMULATED)
FULMEN_DEVICE void mfma_f32_16x16x32_fp8(float (&d)[4], const Words<2>& a, const Words<2>& b,
                                         Position at = Position::here()) {
  mfma_e4m3("mfma_fp8_f32_16x16x32", d, a, b, at);
}
#else
FULMEN_DEVICE void mfma_f32_16x16x32_fp8(float (&d)[4], const Words<2>& a, const Words<2>& b) {
  Float4 c = {d[0], d[1], d[2], d[3]};
  c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, a),
                                                 __builtin_bit_cast(long, b), c, 0, 0, 0);
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}
#endif

// D[i][j] of 16 rows of A and of B. What a lane has of two key tiles is one operand of kCodeDepth
// keys, in this order.
template <int kSums>
FULMEN_DEVICE void multiply_e4m3(float (&d)[kSums], const Words<2>& a, const Words<2>& b) {
  mfma_f32_16x16x32_fp8(d, a, b);
}
constexpr int kCodeDepth = 32;
FULMEN_DEVICE constexpr int code_key(int position) {
  return position % 8 / 4 * 16 + position / 8 * 4 + position % 4;
}

}  // namespace fulmen::kernels
