// CDNA4's matrix instruction and its transposing read of LDS for the host, by the layouts of
// docs/internals/amd_facts.md.
#pragma once

#include "targets/emulated_mfma.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x32(float (&d)[4], const Words<4>& a, const Words<4>& b,
                                     Position at = Position::here()) {
  mfma<T, false, 16>("mfma_f32_16x16x32", d, a, b, at);
}

template <class T>
FULMEN_DEVICE void mfma_f32_32x32x16(float (&d)[16], const Words<4>& a, const Words<4>& b,
                                     Position at = Position::here()) {
  mfma<T, false, 32>("mfma_f32_32x32x16", d, a, b, at);
}

// Odd blocks of `lanes` lanes of a for even ones of b.
FULMEN_DEVICE void swap_blocks(const char* name, int lanes, float& a, float& b, Position at) {
  struct Both {
    float a, b;
  };
  const auto* all = all_lanes(name, Both{a, b}, at);
  const int l = lane_id();
  if (l / lanes % 2 == 1) {
    a = all[l - lanes].b;
  } else {
    b = all[l + lanes].a;
  }
}
FULMEN_DEVICE void swap_rows_of_16(float& a, float& b, Position at = Position::here()) {
  swap_blocks("swap_rows_of_16", 16, a, b, at);
}
FULMEN_DEVICE void swap_halves(float& a, float& b, Position at = Position::here()) {
  swap_blocks("swap_halves", 32, a, b, at);
}

FULMEN_DEVICE float larger_after_swap(float a, float b) { return larger(a, b); }

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
