// CDNA4's matrix instruction for the host, from AMD's documented layout. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x32(float (&d)[4], const Words<4>& a, const Words<4>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<4> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("mfma_f32_16x16x32", mine, at);
  // A[i][k]: i = l % 16, k = 8 (l / 16) + e; B the same; D[i][j]: i = 4 (l / 16) + e, j = l % 16.
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 4; ++e) {
    const int i = 4 * (l / 16) + e;
    for (int k = 0; k < 32; ++k)
      d[e] += element<T>(lanes[i + 16 * (k / 8)].a, k % 8) *
              element<T>(lanes[j + 16 * (k / 8)].b, k % 8);
  }
}

}  // namespace fulmen::kernels
