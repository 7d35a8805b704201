// CDNA2's matrix instructions for the host.
#pragma once

#include "targets/emulated_mfma.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x16(float (&d)[4], const Words<2>& a, const Words<2>& b,
                                     Position at = Position::here()) {
  mfma<T, true, 16>("mfma_f32_16x16x16", d, a, b, at);
}

template <class T>
FULMEN_DEVICE void mfma_f32_32x32x8(float (&d)[16], const Words<2>& a, const Words<2>& b,
                                    Position at = Position::here()) {
  mfma<T, true, 32>("mfma_f32_32x32x8", d, a, b, at);
}

}  // namespace fulmen::kernels
