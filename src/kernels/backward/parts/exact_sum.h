// Sums of floats that do not depend on their order: each float is added as integers to words of
// fixed weights, without a rounding. Word w of an element counts units of 2^(24 w - 149), so that
// the 24 digits of a float reach into two neighbouring words. A word has room for 2^39 floats.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

constexpr int kWordDigits = 24;
constexpr unsigned kDigits = (1U << kWordDigits) - 1;

// The flags of an element: whether +inf (-inf) was added. Both together are a NaN.
FULMEN_DEVICE int* first_flag(const TensorGradients& g) {
  return reinterpret_cast<int*>(g.sums + Int64{algorithm::kTensorSumWords} * g.elements);
}

FULMEN_DEVICE void add_exactly(const TensorGradients& g, int element, float x) {
  const unsigned bits = float_bits(x), exponent = bits >> 23U & 255U;
  if (exponent == 255U) {  // all who write here write the same
    if (!(x < 0)) global_store(first_flag(g) + element, 1);
    if (!(x > 0)) global_store(first_flag(g) + g.elements + element, 1);
    return;
  }
  const unsigned mantissa = (bits & 0x7FFFFFU) | (exponent == 0 ? 0U : 0x800000U);
  const unsigned place = exponent == 0 ? 0U : exponent - 1U;  // of the last digit
  const auto digits =
      static_cast<Int64>(static_cast<unsigned long long>(mantissa) << place % kWordDigits);
  const Int64 low = digits & kDigits, high = digits >> kWordDigits;
  Int64* const word = g.sums + Int64{place / kWordDigits} * g.elements + element;
  const bool negative = bits >> 31U != 0;
  if (low != 0) global_add_int64(word, negative ? -low : low);
  if (high != 0) global_add_int64(word + g.elements, negative ? -high : high);
}

// 2^exponent, which is at least -149.
FULMEN_DEVICE float power_of_two(int exponent) {
  return exponent < -126 ? bits_float(1U << static_cast<unsigned>(exponent + 149))
                         : bits_float(static_cast<unsigned>(exponent + 127) << 23U);
}

// What was added to an element, rounded to fp32.
FULMEN_DEVICE float exact_sum(const TensorGradients& g, int element) {
  const bool above = global_load(first_flag(g) + element) != 0,
             below = global_load(first_flag(g) + g.elements + element) != 0;
  // Words are signed, and larger than their digits: carries make digits of them. A negative sum
  // ends with a carry below 0, and its words are then taken with the other sign.
  const Int64* const words = g.sums + element;
  Int64 carry = 0;
#pragma unroll 1
  for (int w = 0; w < algorithm::kTensorSumWords; ++w)
    carry = (global_load(words + Int64{w} * g.elements) + carry) >> kWordDigits;
  const Int64 sign = carry < 0 ? -1 : 1;
  carry = 0;
  Int64 leading = 0, before = 0;  // two neighbouring words' digits, the last ones that are not 0
  int first = 0;                  // the word of the second
  bool rest = false, leading_rest = false;  // whether digits below those are not 0
#pragma unroll 1
  for (int w = 0; w < algorithm::kTensorSumWords; ++w) {
    const Int64 word = sign * global_load(words + Int64{w} * g.elements) + carry,
                digits = word & kDigits;
    carry = word >> kWordDigits;
    if (digits != 0) {
      leading = digits << kWordDigits | before;
      leading_rest = rest;
      first = w - 1;
    }
    rest = rest || before != 0;
    before = digits;
  }
  // 25 to 48 digits, and one for what is below them: a float rounds them as it would all.
  const auto rounded = static_cast<float>(2 * leading + (leading_rest ? 1 : 0));
  // The first unit may be below what a float has: that of word -1 is 2^-173.
  constexpr int kLeast = -149, kHalf = 64;
  const int exponent = kWordDigits * first + kLeast - 1;
  float sum = exponent < -126 ? rounded * power_of_two(exponent + kHalf) * power_of_two(-kHalf)
                              : rounded * power_of_two(exponent);
  if (carry != 0) sum = kInfinity;  // 2^139 or more
  if (sign < 0) sum = -sum;
  if (above || below) sum = !above ? -kInfinity : below ? kNan : kInfinity;
  return sum;
}

}  // namespace fulmen::kernels
