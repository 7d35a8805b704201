// RDNA3's matrix instruction for the host, from AMD's documented layout. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void wmma_f32_16x16x16(float (&d)[8], const Words<8>& a, const Words<8>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<8> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("wmma_f32_16x16x16", mine, at);
  // A[i][k]: lane i, element k; B[k][j]: lane j, element k; D[i][j]: i = 2 e + l / 16, j = l % 16.
  // Lanes l and l + 16 hold the same.
  const int l = lane_id(), j = l % 16;
  if (__builtin_memcmp(&lanes[l], &lanes[l ^ 16], sizeof(Operands)) != 0)
    emulator->fail("wmma: lanes l and l + 16 hold different operands", at.file, at.line);
  for (int e = 0; e < 8; ++e) {
    const int i = 2 * e + l / 16;
    for (int k = 0; k < 16; ++k) d[e] += element<T>(lanes[i].a, k) * element<T>(lanes[j].b, k);
  }
}

// The same lanes, with 16 int8 codes each. d: bits of their sums.
FULMEN_DEVICE void wmma_i32_16x16x16(float (&d)[8], const Words<4>& a, const Words<4>& b,
                                     Position at = Position::here()) {
  struct Operands {
    Words<4> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("wmma_i32_16x16x16", mine, at);
  const int l = lane_id(), j = l % 16;
  if (__builtin_memcmp(&lanes[l], &lanes[l ^ 16], sizeof(Operands)) != 0)
    emulator->fail("wmma: lanes l and l + 16 hold different operands", at.file, at.line);
  for (int e = 0; e < 8; ++e) {
    const int i = 2 * e + l / 16;
    for (int k = 0; k < 16; ++k) add_codes(d[e], code(lanes[i].a, k), code(lanes[j].b, k));
  }
}

FULMEN_DEVICE unsigned permlanex16(unsigned x, Position at = Position::here()) {
  return all_lanes("permlanex16", x, at)[lane_id() ^ 16];
}

}  // namespace fulmen::kernels
