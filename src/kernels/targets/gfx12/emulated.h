// RDNA4's matrix instruction for the host, from AMD's documented layout. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void wmma_f32_16x16x16(float (&d)[8], const Words<4>& a, const Words<4>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<4> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("wmma_f32_16x16x16", mine, at);
  // A[i][k]: i = l % 16, k = 8 (e / 4) + 4 (l / 16) + e % 4; B the same; D[i][j]: i = 8
  // (l / 16) + e, j = l % 16.
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 8; ++e) {
    const int i = 8 * (l / 16) + e;
    for (int k = 0; k < 16; ++k) {
      const int half = 16 * (k / 4 % 2), slot = 4 * (k / 8) + k % 4;
      d[e] += element<T>(lanes[i + half].a, slot) * element<T>(lanes[j + half].b, slot);
    }
  }
}

// A lane has 8 neighbours among int8 codes: k = 8 (l / 16) + e. d: bits of their sums.
FULMEN_DEVICE void wmma_i32_16x16x16(float (&d)[8], const Words<2>& a, const Words<2>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<2> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("wmma_i32_16x16x16", mine, at);
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 8; ++e) {
    const int i = 8 * (l / 16) + e;
    for (int k = 0; k < 16; ++k) {
      const int half = 16 * (k / 8);
      add_codes(d[e], code(lanes[i + half].a, k % 8), code(lanes[j + half].b, k % 8));
    }
  }
}

// The same lanes, with codes of E4M3.
FULMEN_DEVICE void wmma_f32_16x16x16_fp8(float (&d)[8], const Words<2>& a, const Words<2>& b,
                                         Position at = Position::here()) {
  struct Operands {
    Words<2> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("wmma_fp8_f32_16x16x16", mine, at);
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 8; ++e) {
    const int i = 8 * (l / 16) + e;
    for (int k = 0; k < 16; ++k) {
      const int half = 16 * (k / 8);
      d[e] += e4m3_element(lanes[i + half].a, k % 8) * e4m3_element(lanes[j + half].b, k % 8);
    }
  }
}

FULMEN_DEVICE unsigned permlanex16(unsigned x, Position at = Position::here()) {
  return all_lanes("permlanex16", x, at)[lane_id() ^ 16];
}

}  // namespace fulmen::kernels
