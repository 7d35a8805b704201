// Element k of an operand: 16-bit values, two a word, low half first; or int8 codes, four a word.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

template <class T, int kWords>
FULMEN_DEVICE float element(const Words<kWords>& operand, int k) {
  return to_float(T{static_cast<unsigned short>(operand.word[k / 2] >> (16U * (k % 2)))});
}

template <int kWords>
FULMEN_DEVICE int code(const Words<kWords>& operand, int k) {
  return static_cast<signed char>(operand.word[k / 4] >> (8U * (k % 4)) & 0xFFU);
}
// sum: a float whose bits are an int. Integers wrap.
FULMEN_DEVICE void add_codes(float& sum, int a, int b) {
  sum = bits_float(float_bits(sum) + static_cast<unsigned>(a * b));
}

}  // namespace fulmen::kernels
