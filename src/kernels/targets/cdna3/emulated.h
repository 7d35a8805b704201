// CDNA3's matrix instruction for the host, from AMD's documented layout. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x16(float (&d)[4], const Words<2>& a, const Words<2>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<2> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("mfma_f32_16x16x16", mine, at);
  // A[i][k]: i = l % 16, k = 4 (l / 16) + e; B the same; D[i][j]: i = 4 (l / 16) + e, j = l % 16.
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 4; ++e) {
    const int i = 4 * (l / 16) + e;
    for (int k = 0; k < 16; ++k)
      d[e] += element<T>(lanes[i + 16 * (k / 4)].a, k % 4) *
              element<T>(lanes[j + 16 * (k / 4)].b, k % 4);
  }
}

template <class T>
FULMEN_DEVICE void mfma_f32_32x32x8(float (&d)[16], const Words<2>& a, const Words<2>& b,
                                    Position at = Position::here()) {
  struct Operands {
    Words<2> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("mfma_f32_32x32x8", mine, at);
  // A[i][k]: i = l % 32, k = 4 (l / 32) + e; B the same; D[i][j]: i = 8 (e / 4) + 4
  // (l / 32) + e % 4, j = l % 32.
  const int l = lane_id(), j = l % 32;
  for (int e = 0; e < 16; ++e) {
    const int i = 8 * (e / 4) + 4 * (l / 32) + e % 4;
    for (int k = 0; k < 8; ++k)
      d[e] += element<T>(lanes[i + 32 * (k / 4)].a, k % 4) *
              element<T>(lanes[j + 32 * (k / 4)].b, k % 4);
  }
}

}  // namespace fulmen::kernels
