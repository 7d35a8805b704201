// Pairs of stored numbers as those of fp16 or bf16 that matrix instructions multiply: exact for
// int8 and fp8. Their scales come to scores and probabilities, in fp32.
#pragma once

#include "core/stored_number.h"

namespace fulmen::kernels {

// Bytes of a number of k, or of v, as matrix kernels read them.
template <bool kValues>
constexpr int kStoredBytes =
    (kCodeKeys && !kValues) || (kQuantized && (kValues ? kValueFormat : kKeyFormat) >= kInt8) ? 1
                                                                                              : 2;
// Strides' units in a number.
template <bool kValues>
constexpr int kStoredUnits = kQuantized ? kStoredBytes<kValues> : 1;
// kCount numbers as they are stored.
template <bool kValues, int kCount>
using StoredWords = Words<(kCount * kStoredBytes<kValues> + 3) / 4>;

// Two fp8 numbers as fp16 ones, from bytes in the high halves of each 16 bits.
template <int kFormat>
FULMEN_DEVICE unsigned fp8_halves(unsigned bytes) {
  if constexpr (kFormat == kE5m2) return bytes;
  if constexpr (kFormat == kE5m2Fnuz)
    return fp8_half<kFormat>(bytes >> 8U & 0xFFU) | fp8_half<kFormat>(bytes >> 24U) << 16U;
  const unsigned size = bytes >> 1U & 0x3F803F80U, small = size | (bytes & 0x80008000U);
  // 2^8, or 2^7 with the other bias; bit 14 for a NaN.
  const unsigned number = multiply_halves(small, kFormat == kE4m3 ? 0x5C005C00U : 0x58005800U);
  const unsigned nan = kFormat == kE4m3 ? (size + 0x00800080U) & 0x40004000U
                                        : (~(size + 0x7FFF7FFFU) & bytes & 0x80008000U) >> 1U;
  return number | nan | (nan - (nan >> 5U));
}

// Whether numbers become those of T by way of fp32. The bits of an E5M2 number are those of fp16.
template <class T, int kFormat>
constexpr bool kByFloats = kConvertsFormat<kFormat> && !(kIsHalf<T> && kFormat == kE5m2);
// Two numbers that T has.
template <class T>
FULMEN_DEVICE unsigned exact_pair(float x, float y) {
  // One instruction, whichever way it rounds.
  if constexpr (kIsHalf<T>) return pack_half_probabilities(x, y);
  return halves(float_bits(x), float_bits(y), true);
}

// Byte i of a, and above it byte j of b, as numbers of T.
template <class T, int kFormat>
FULMEN_DEVICE unsigned number_pair(unsigned a, int i, unsigned b, int j) {
  if constexpr (kByFloats<T, kFormat>) {
    return exact_pair<T>(number_of_byte<kFormat>(a, i), number_of_byte<kFormat>(b, j));
  } else if constexpr (kFormat == kInt8) {
    if constexpr (!kIsHalf<T>) return int8_pair_bf16(a, i, b, j);
    // 1024 + 128 + x, less that.
    return add_halves(byte_pair<false>(a, i, b, j) ^ 0x64806480U, 0xE480E480U);
  } else {
    unsigned both = 0;
    if constexpr (kConvertsE4m3 && kFormat == kE4m3) {
      both = e4m3_pair_half(a, i, b, j);
    } else {
      both = fp8_halves<kFormat>(byte_pair<true>(a, i, b, j));
    }
    if constexpr (kIsHalf<T>) return both;
    return halves(float_bits(half_to_float(static_cast<unsigned short>(both))),
                  float_bits(half_to_float(static_cast<unsigned short>(both >> 16U))), true);
  }
}

// The low, or the high, two bytes of x.
template <class T, int kFormat>
FULMEN_DEVICE unsigned neighbour_pair(unsigned x, bool high) {
  if constexpr (kByFloats<T, kFormat>) {
    float numbers[2];
    fp8_to_floats<kIsE5m2<kFormat>>(x, high, numbers);
    return exact_pair<T>(numbers[0], numbers[1]);
  } else {
    return number_pair<T, kFormat>(x, high ? 2 : 0, x, high ? 3 : 1);
  }
}

// Numbers `n` of rows a and b, in a pair.
template <bool kValues, class T, int kWords>
FULMEN_DEVICE unsigned pair_of_rows(const Words<kWords>& a, const Words<kWords>& b, int n) {
  if constexpr (kStoredBytes<kValues> == 2) {
    return halves(a.word[n / 2], b.word[n / 2], n % 2 != 0);
  } else {
    return number_pair<T, kValues ? kValueFormat : kKeyFormat>(a.word[n / 4], n % 4, b.word[n / 4],
                                                               n % 4);
  }
}

// 8 numbers of a row as a piece of an operand.
template <bool kValues, class T>
FULMEN_DEVICE Words<4> piece_of(const StoredWords<kValues, 8>& stored) {
  if constexpr (kStoredBytes<kValues> == 2) {
    return stored;
  } else {
    Words<4> piece;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      piece.word[w] =
          neighbour_pair<T, kValues ? kValueFormat : kKeyFormat>(stored.word[w / 2], w % 2 != 0);
    return piece;
  }
}

}  // namespace fulmen::kernels
