// Element k of an operand: 16-bit values, two a word, low half first.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

template <class T, int kWords>
FULMEN_DEVICE float element(const Words<kWords>& operand, int k) {
  return to_float(T{static_cast<unsigned short>(operand.word[k / 2] >> (16U * (k % 2)))});
}

}  // namespace fulmen::kernels
