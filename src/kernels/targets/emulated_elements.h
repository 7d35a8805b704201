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

// The number of an E4M3 code.
template <int kWords>
FULMEN_DEVICE float e4m3_element(const Words<kWords>& operand, int k) {
  const unsigned byte = operand.word[k / 4] >> (8U * (k % 4)) & 0xFFU, size = byte & 0x7FU;
  if (kFnuzCodes ? byte == 0x80U : size == 0x7FU) return kNan;
  // A subnormal number is a multiple of 2^-9, a normal one 8 to 15 of them, doubled.
  const unsigned exponent = size / 8;
  float x = static_cast<float>(exponent == 0 ? size : 8 + size % 8) * 0x1p-9F;
  for (unsigned n = 1; n < exponent; ++n) x *= 2;
  if constexpr (kFnuzCodes) x /= 2;
  return byte >= 0x80U ? -x : x;
}

}  // namespace fulmen::kernels
