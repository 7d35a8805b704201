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
