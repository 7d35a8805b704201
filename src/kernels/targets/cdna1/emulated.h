// CDNA1's matrix instructions for the host.
#pragma once

#include "targets/emulated_mfma.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x8(float (&d)[4], const Words<1>& a, const Words<1>& b,
                                    Position at = Position::here()) {
  mfma<T, true, 16>("mfma_f32_16x16x8", d, a, b, at);
}

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x16(float (&d)[4], const Words<2>& a, const Words<2>& b,
                                     Position at = Position::here()) {
  if constexpr (kIsHalf<T>) {
    mfma<T, true, 16>("mfma_f32_16x16x16", d, a, b, at);
  } else {
    for (int w = 0; w < 2; ++w)
      mfma_f32_16x16x8<T>(d, Words<1>{{a.word[w]}}, Words<1>{{b.word[w]}}, at);
  }
}

}  // namespace fulmen::kernels
