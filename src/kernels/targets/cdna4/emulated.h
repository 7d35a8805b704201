// CDNA4's matrix instruction and its transposing read of LDS for the host, by the layouts of
// docs/internals/amd_facts.md. Products are exact in fp32; they are added in the order of k (the
// hardware's order is not documented).
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

// Lane i of a block of 16 has element i % 4 of what the lanes i / 4, i / 4 + 4, i / 4 + 8 and
// i / 4 + 12 of the block have read.
FULMEN_DEVICE Words<2> lds_load_transposed(int offset, Position at = Position::here()) {
  const auto own = lds_load<Words<2>>(offset, at);
  const auto* lanes = all_lanes("lds_load_transposed", own, at);
  const int l = lane_id(), block = l / 16 * 16, i = l % 16;
  Words<2> column{};
  for (int r = 0; r < 4; ++r) {
    const unsigned word = lanes[block + 4 * r + i / 4].word[i % 4 / 2];
    column.word[r / 2] |= (word >> (16 * (i % 2)) & 0xFFFFU) << (16 * (r % 2));
  }
  return column;
}

}  // namespace fulmen::kernels
