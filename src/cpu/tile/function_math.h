// What score functions compute beyond C's operators, an element or a vector at a time. Embedded as
// text: it includes nothing of the library but what is embedded.
#pragma once

#include <cstdint>

#include "cpu/tile/inline.h"

namespace fulmen::cpu {

// The language's int operations that C leaves open, without branches and without divisions of
// integers, so that they become vectors. A quotient in double becomes the exact quotient's integer:
// that is at least 1 / |b| away from any other integer, and rounding moves it by less.
FULMEN_INLINE int32_t rest_by(int32_t a, int32_t by, int32_t& quotient) {
  quotient = static_cast<int32_t>(static_cast<double>(a) / static_cast<double>(by));
  const uint32_t product = static_cast<uint32_t>(quotient) * static_cast<uint32_t>(by);
  const auto rest = static_cast<int32_t>(static_cast<uint32_t>(a) - product);
  const int32_t below = -static_cast<int32_t>((rest != 0) & ((rest ^ by) < 0));
  quotient += below;
  return rest + (by & below);
}
// 1 for 0, and for -1: the quotient of the least number by -1 is no int32.
FULMEN_INLINE int32_t divisor_of(int32_t b) {
  const int32_t other = -static_cast<int32_t>((b == 0) | (b == -1));
  return (b & ~other) | (1 & other);
}
FULMEN_INLINE int32_t quotient_of(int32_t a, int32_t b) {
  int32_t quotient = 0;
  rest_by(a, divisor_of(b), quotient);
  const int32_t by_zero = -static_cast<int32_t>(b == 0),
                by_minus_one = -static_cast<int32_t>(b == -1);
  const auto negative = static_cast<int32_t>(0U - static_cast<uint32_t>(quotient));
  return (negative & by_minus_one) | (quotient & ~(by_zero | by_minus_one));
}
FULMEN_INLINE int32_t rest_of(int32_t a, int32_t b) {
  int32_t quotient = 0;
  return rest_by(a, divisor_of(b), quotient);
}
FULMEN_INLINE int32_t truncated(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0F) return 2147483647;
  return x <= -2147483648.0F ? -2147483647 - 1 : static_cast<int32_t>(x);
}

FULMEN_INLINE float bf16_bits(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}
FULMEN_INLINE float fp16_bits(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16, magnitude = bits & 0x7FFFU;
  uint32_t wide = magnitude << 13;
  float value;
  if (magnitude >= 0x7C00U) {
    wide |= sign | 0x7F800000U;
    __builtin_memcpy(&value, &wide, sizeof value);
    return value;
  }
  __builtin_memcpy(&value, &wide, sizeof value);
  value *= 0x1p112F;
  return sign != 0 ? -value : value;
}

// 2^x of any x.
template <class Isa>
FULMEN_INLINE typename Isa::Vec exp2_of(typename Isa::Vec x) {
  // The set's own takes less than 128: from 127 on the result is a product of two.
  const auto most = Isa::set1(127.0F);
  const auto low = Isa::template exp2<5>(Isa::min(most, x));
  const auto rest = Isa::template exp2<5>(Isa::min(Isa::set1(1.0F), Isa::sub(x, most)));
  // From 128 on it is infinite.
  const auto high =
      Isa::select_less(x, Isa::set1(128.0F), Isa::mul(low, rest), Isa::set1(__builtin_inff()));
  return Isa::select_less(most, x, high, low);
}

// e^x: the product with log2(e) in two parts, the second of which its rounding left.
template <class Isa>
FULMEN_INLINE typename Isa::Vec exp_of(typename Isa::Vec x) {
  const auto log2e = Isa::set1(1.44269502F), rest = Isa::set1(1.92596299e-8F);
  // Beyond these it is 0 or infinite.
  const auto limited = Isa::min(Isa::set1(104.0F), Isa::max(Isa::set1(-104.0F), x));
  const auto high = Isa::mul(limited, log2e);
  const auto low =
      Isa::fused(limited, rest, Isa::fused(limited, log2e, Isa::sub(Isa::zero(), high)));
  const auto y = exp2_of<Isa>(high);
  const auto exact = Isa::fused(Isa::mul(y, Isa::set1(0.693147181F)), low, y);
  return Isa::select_less(y, Isa::set1(__builtin_inff()), exact, y);
}

// 1 - 2 / (1 + e^2x), near 0 by its series.
template <class Isa>
FULMEN_INLINE typename Isa::Vec tanh_of(typename Isa::Vec x) {
  const auto one = Isa::set1(1.0F), square = Isa::mul(x, x);
  auto series = Isa::fused(square, Isa::set1(62.0F / 2835.0F), Isa::set1(-17.0F / 315.0F));
  series = Isa::fused(series, square, Isa::set1(2.0F / 15.0F));
  series = Isa::fused(series, square, Isa::set1(-1.0F / 3.0F));
  series = Isa::fused(Isa::mul(series, square), x, x);
  const auto limited = Isa::min(Isa::set1(20.0F), Isa::max(Isa::set1(-20.0F), x));
  const auto whole = Isa::sub(
      one, Isa::div(Isa::set1(2.0F), Isa::add(one, exp_of<Isa>(Isa::add(limited, limited)))));
  return Isa::select_less(Isa::abs(x), Isa::set1(0.25F), series, whole);
}

template <class Isa>
FULMEN_INLINE typename Isa::Vec sigmoid_of(typename Isa::Vec x) {
  const auto one = Isa::set1(1.0F);
  return Isa::div(one, Isa::add(one, exp_of<Isa>(Isa::sub(Isa::zero(), x))));
}

}  // namespace fulmen::cpu
