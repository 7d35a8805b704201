// The operations of score functions (docs/guide/score_functions.md), by the names that the host
// prints (score/source.cpp). Floats follow IEEE but for the last bits of the functions below;
// products are not fused with sums. What a choice chooses from is computed before it: each branch
// would hold up all that follows, and AMD's compiler then spills.
#pragma once

#include "core/base.h"

namespace fulmen::kernels::score_operations {

FULMEN_DEVICE float real(unsigned bits) { return bits_float(bits); }

FULMEN_DEVICE float negate(float x) { return -x; }
FULMEN_DEVICE float abs(float x) { return absolute(x); }
FULMEN_DEVICE float add(float x, float y) { return x + y; }
FULMEN_DEVICE float subtract(float x, float y) { return x - y; }
FULMEN_DEVICE float multiply(float x, float y) { return rounded_product(x, y); }
FULMEN_DEVICE float divide(float x, float y) { return x / y; }
FULMEN_DEVICE float min(float x, float y) { return x != x || y != y ? x + y : x < y ? x : y; }
FULMEN_DEVICE float max(float x, float y) { return x != x || y != y ? x + y : x > y ? x : y; }
FULMEN_DEVICE float sqrt(float x) { return square_root(x); }
FULMEN_DEVICE float rsqrt(float x) { return 1.0F / square_root(x); }
FULMEN_DEVICE float floor(float x) { return round_down(x); }
FULMEN_DEVICE float ceil(float x) { return -round_down(-x); }
FULMEN_DEVICE float round(float x) { return round_to_even(x); }
FULMEN_DEVICE float trunc(float x) { return copy_sign(round_down(absolute(x)), x); }

// 2^x, subnormal results included, which the hardware's own may lose.
FULMEN_DEVICE float exp2(float x) {
  const bool small = x < -64.0F;
  const float y = kernels::exp2(x + (small ? 64.0F : 0.0F));
  return y * (small ? 0x1p-64F : 1.0F);
}
// e^x: the product with log2(e) in two parts, the second of which the first's rounding left.
FULMEN_DEVICE float exp(float x) {
  constexpr float kLog2OfE = 1.44269502F, kRest = 1.92596299e-8F, kLn2 = 0.693147181F;
  const float limited = x < -104.0F ? -104.0F : x > 89.0F ? 89.0F : x;
  const float high = rounded_product(limited, kLog2OfE);
  const float low = fused(limited, kRest, fused(limited, kLog2OfE, -high));
  const float y = exp2(high);
  const float exact = fused(y * kLn2, low, y);
  return y < kInfinity ? exact : y;
}

// x = 2^exponent (1 + fraction), the fraction between sqrt(1/2) - 1 and sqrt(2) - 1.
struct BinaryParts {
  float exponent, fraction;

  FULMEN_DEVICE static BinaryParts of(float x) {
    constexpr unsigned kRootOfHalf = 0x3F3504F3U;
    const bool subnormal = x < 0x1p-126F;
    const unsigned bits = float_bits(subnormal ? x * 0x1p24F : x), above = bits - kRootOfHalf;
    const int exponent = static_cast<int>(above) >> 23;
    const float mantissa = bits_float(bits - (static_cast<unsigned>(exponent) << 23U));
    return {static_cast<float>(subnormal ? exponent - 24 : exponent), mantissa - 1.0F};
  }
};
// Logarithms of what is no positive number.
FULMEN_DEVICE float logarithm_of(float x, float of_positive) {
  const float finite = x < kInfinity ? of_positive : x, some = x > 0 ? finite : kNan;
  return x == 0 ? -kInfinity : some;
}
// log(1 + f), f of BinaryParts: f - f^2 / 2 + f^3 p(f), p by Chebyshev's points.
FULMEN_DEVICE float log_of_fraction(float f) {
  float p = 0.071497530F;
  p = fused(p, f, -0.115712009F);
  p = fused(p, f, 0.116615117F);
  p = fused(p, f, -0.124110505F);
  p = fused(p, f, 0.142499357F);
  p = fused(p, f, -0.166684806F);
  p = fused(p, f, 0.200007081F);
  p = fused(p, f, -0.249999896F);
  p = fused(p, f, 0.333333313F);
  return fused(rounded_product(f, f), fused(f, p, -0.5F), f);
}
FULMEN_DEVICE float log(float x) {
  // ln(2) in two parts: its multiples by exponents are exact in the first.
  constexpr float kHigh = 0x1.62e4p-1F, kLow = 0x1.7f7d1cp-20F;
  const BinaryParts parts = BinaryParts::of(x);
  const float low = fused(parts.exponent, kLow, log_of_fraction(parts.fraction));
  return logarithm_of(x, fused(parts.exponent, kHigh, low));
}
FULMEN_DEVICE float log2(float x) {
  constexpr float kLog2OfE = 1.44269502F, kRest = 1.92596299e-8F;
  const BinaryParts parts = BinaryParts::of(x);
  const float y = log_of_fraction(parts.fraction);
  return logarithm_of(x, parts.exponent + fused(y, kLog2OfE, rounded_product(y, kRest)));
}

// 1 - 2 / (1 + e^2x), near 0 by its series.
FULMEN_DEVICE float tanh(float x) {
  const float square = rounded_product(x, x);
  float series = fused(square, 62.0F / 2835.0F, -17.0F / 315.0F);
  series = fused(series, square, 2.0F / 15.0F);
  series = fused(series, square, -1.0F / 3.0F);
  series = fused(rounded_product(series, square), x, x);
  // Beyond 20 it is 1.
  const float limited = x < -20.0F ? -20.0F : x > 20.0F ? 20.0F : x;
  const float whole = 1.0F - 2.0F * reciprocal(1.0F + exp(limited + limited));
  return absolute(x) < 0.25F ? series : whole;
}
FULMEN_DEVICE float sigmoid(float x) {
  // 1 / (1 + e^-x) of e^-|x|, which does not overflow.
  const float e = exp(-absolute(x)), y = reciprocal(1.0F + e);
  return y * (x < 0 ? e : 1.0F);
}
// Below 1 by a polynomial of the square, beyond as 1 - e^-p(x), both by Chebyshev's points.
FULMEN_DEVICE float erf(float x) {
  const float y = absolute(x), square = rounded_product(y, y);
  float small = -9.67359028e-6F;
  small = fused(small, square, 1.12682537e-4F);
  small = fused(small, square, -8.48439639e-4F);
  small = fused(small, square, 5.22105349e-3F);
  small = fused(small, square, -2.68654376e-2F);
  small = fused(small, square, 0.112837829F);
  small = fused(small, square, -0.376126379F);
  small = fused(small, square, 1.12837923F);
  const float limited = y < 4.0F ? y : 4.0F;
  float power = -1.61406160e-6F;
  power = fused(power, limited, 4.55906229e-5F);
  power = fused(power, limited, -5.92769531e-4F);
  power = fused(power, limited, 4.74022236e-3F);
  power = fused(power, limited, -2.63647176e-2F);
  power = fused(power, limited, 0.109978244F);
  power = fused(power, limited, 0.631937087F);
  power = fused(power, limited, 1.13016665F);
  power = fused(power, limited, -3.03212961e-4F);
  const float large = copy_sign(1.0F - exp(-power), x), product = x * small;
  return y < 1.0F ? product : y == y ? large : x;
}

// A number as (pi / 2) quadrants + rest, the rest between about -pi / 4 and pi / 4.
struct Angle {
  int quadrant;  // modulo 4
  float rest;

  FULMEN_DEVICE static Angle of(float x) {
    constexpr float kFar = 1048576.0F;  // 2^20
    if (!(absolute(x) < kFar)) return far(x);
    const float n = round_to_even(rounded_product(x, 0.636619772F));
    // pi / 2 in three parts.
    float rest = fused(n, -0x1.921fb6p+0F, x);
    rest = fused(n, 0x1.777a5cp-25F, rest);
    rest = fused(n, 0x1.ee59dap-50F, rest);
    return {static_cast<int>(n) & 3, rest};
  }

 private:
  // Words of 2 / pi, 0 before the first.
  FULMEN_DEVICE static unsigned two_by_pi(unsigned n) {
    return n == 1   ? 0xA2F9836EU
           : n == 2 ? 0x4E441529U
           : n == 3 ? 0xFC2757D1U
           : n == 4 ? 0xF534DDC0U
           : n == 5 ? 0xDB629599U
           : n == 6 ? 0x3C439041U
           : n == 7 ? 0xFE5163ABU
                    : 0U;
  }
  // x = m 2^e is multiplied with those bits of 2 / pi whose products are not multiples of 4.
  FULMEN_DEVICE static Angle far(float x) {
    if (!(absolute(x) < kInfinity)) return {0, kNan};
    using Wide = unsigned long long;
    const unsigned bits = float_bits(absolute(x));
    const unsigned shift = (bits >> 23U) - 150U + 30U, first = shift / 32, by = shift % 32;
    const Wide m = (bits & 0x7FFFFFU) | 0x800000U;
    const auto word = [&](unsigned n) {
      const Wide both = static_cast<Wide>(two_by_pi(first + n)) << 32U | two_by_pi(first + n + 1);
      return static_cast<unsigned>(both << by >> 32U);
    };
    const Wide turns = (m * word(0) << 32U) + m * word(1) + (m * word(2) >> 32U);
    const int quadrant = static_cast<int>((turns >> 62U) + (turns >> 61U & 1U)) & 3;
    const auto part = static_cast<Int64>(turns << 2U);
    const float rest = static_cast<float>(part) * (1.57079633F * 0x1p-64F);
    return x < 0 ? Angle{-quadrant & 3, -rest} : Angle{quadrant, rest};
  }
};
FULMEN_DEVICE float sin_of(const Angle& angle, int quadrant) {
  const float x = angle.rest, square = rounded_product(x, x);
  float sin = fused(2.72499642e-6F, square, -1.98400870e-4F);
  sin = fused(sin, square, 8.33333191e-3F);
  sin = fused(sin, square, -0.166666672F);
  sin = fused(rounded_product(sin, square), x, x);
  float cos = fused(-2.73027041e-7F, square, 2.48006199e-5F);
  cos = fused(cos, square, -1.38888881e-3F);
  cos = fused(cos, square, 4.16666679e-2F);
  cos = fused(cos, rounded_product(square, square), fused(square, -0.5F, 1.0F));
  const float y = (quadrant & 1) != 0 ? cos : sin;
  return (quadrant & 2) != 0 ? -y : y;
}
FULMEN_DEVICE float sin(float x) {
  const Angle angle = Angle::of(x);
  return sin_of(angle, angle.quadrant);
}
FULMEN_DEVICE float cos(float x) {
  const Angle angle = Angle::of(x);
  return sin_of(angle, angle.quadrant + 1);
}

// 2^(y log2(x)) of a positive, finite x: the exponent as a sum of two floats.
FULMEN_DEVICE float power_of_positive(float x, float y) {
  const BinaryParts parts = BinaryParts::of(x);
  // log(1 + f) = 2 atanh(s), s = f / (2 + f).
  const float f = parts.fraction, below = 2.0F + f, s = f / below;
  const float rounded = (2.0F - below) + f, s_rest = (fused(-s, below, f) - s * rounded) / below;
  const float square = rounded_product(s, s);
  float series = 9.68293697e-2F;
  series = fused(series, square, 0.110956162F);
  series = fused(series, square, 0.142858788F);
  series = fused(series, square, 0.199999988F);
  series = fused(series, square, 0.333333343F);
  const float cubed = rounded_product(rounded_product(series, square), s) + s_rest;
  // Times 2 / ln(2), in two parts.
  constexpr float kFactor = 2.88539004F, kFactorRest = 3.85192599e-8F;
  const float high = rounded_product(s, kFactor);
  const float low = fused(s, kFactorRest, fused(cubed, kFactor, fused(s, kFactor, -high)));
  const float sum = parts.exponent + high;
  const float sum_low = low + ((parts.exponent - sum) + high);
  const float limit = absolute(y) < 0x1p40F ? y : copy_sign(0x1p40F, y);
  const float product = rounded_product(limit, sum);
  const float rest = fused(limit, sum_low, fused(limit, sum, -product));
  if (product > 129.0F) return kInfinity;
  if (product < -151.0F) return 0.0F;
  const float whole = round_to_even(product);
  // Below 2^-126 the hardware's own exponential loses bits: two factors.
  const float part = exp2((product - whole) + rest), half = round_down(0.5F * whole);
  return part * exp2(half) * exp2(whole - half);
}
FULMEN_DEVICE float pow(float x, float y) {
  if (y == 0 || x == 1) return 1.0F;
  if (x != x || y != y) return x + y;
  const bool whole = round_down(y) == y,
             odd = whole && absolute(y) < 0x1p24F && round_down(0.5F * y) != 0.5F * y;
  const float magnitude = absolute(x);
  float result;
  if (absolute(y) == kInfinity) {
    result = magnitude == 1 ? 1.0F : (magnitude < 1) == (y < 0) ? kInfinity : 0.0F;
  } else if (magnitude == 0 || magnitude == kInfinity) {
    result = (magnitude == 0) == (y < 0) ? kInfinity : 0.0F;
  } else {
    if (x < 0 && !whole) return kNan;
    result = power_of_positive(magnitude, y);
  }
  return odd ? copy_sign(result, x) : result;
}

FULMEN_DEVICE bool less(float x, float y) { return x < y; }
FULMEN_DEVICE bool less_equal(float x, float y) { return x <= y; }
FULMEN_DEVICE bool equal(float x, float y) { return x == y; }
FULMEN_DEVICE bool not_equal(float x, float y) { return x != y; }
FULMEN_DEVICE bool isnan(float x) { return x != x; }

// Ints wrap.
FULMEN_DEVICE int wrapped(unsigned x) { return static_cast<int>(x); }
FULMEN_DEVICE unsigned bits(int x) { return static_cast<unsigned>(x); }
FULMEN_DEVICE int int_negate(int x) { return wrapped(0U - bits(x)); }
FULMEN_DEVICE int int_abs(int x) { return x < 0 ? int_negate(x) : x; }
FULMEN_DEVICE int int_invert(int x) { return ~x; }
FULMEN_DEVICE int int_add(int x, int y) { return wrapped(bits(x) + bits(y)); }
FULMEN_DEVICE int int_subtract(int x, int y) { return wrapped(bits(x) - bits(y)); }
FULMEN_DEVICE int int_multiply(int x, int y) { return wrapped(bits(x) * bits(y)); }
// Of -1 the quotient may wrap, which a division must not.
FULMEN_DEVICE int floor_divide(int x, int y) {
  const int by = y == 0 || y == -1 ? 1 : y, quotient = x / by, rest = x % by;
  const int floored = rest != 0 && (rest < 0) != (by < 0) ? quotient - 1 : quotient;
  return y == 0 ? 0 : y == -1 ? int_negate(x) : floored;
}
FULMEN_DEVICE int modulo(int x, int y) {
  const int by = y == 0 || y == -1 ? 1 : y, rest = x % by;
  return rest != 0 && (rest < 0) != (by < 0) ? rest + by : rest;
}
FULMEN_DEVICE int shift_left(int x, int y) { return wrapped(bits(x) << (bits(y) & 31U)); }
FULMEN_DEVICE int shift_right(int x, int y) { return x >> (y & 31); }
FULMEN_DEVICE int int_min(int x, int y) { return x < y ? x : y; }
FULMEN_DEVICE int int_max(int x, int y) { return x > y ? x : y; }
FULMEN_DEVICE int bit_and(int x, int y) { return x & y; }
FULMEN_DEVICE int bit_xor(int x, int y) { return x ^ y; }
FULMEN_DEVICE int bit_or(int x, int y) { return x | y; }
FULMEN_DEVICE bool int_less(int x, int y) { return x < y; }
FULMEN_DEVICE bool int_less_equal(int x, int y) { return x <= y; }
FULMEN_DEVICE bool int_equal(int x, int y) { return x == y; }
FULMEN_DEVICE bool int_not_equal(int x, int y) { return x != y; }
FULMEN_DEVICE bool logical_not(bool x) { return !x; }

template <class T>
FULMEN_DEVICE T select(bool condition, T x, T y) {
  return condition ? x : y;
}
FULMEN_DEVICE float int_to_real(int x) { return static_cast<float>(x); }
FULMEN_DEVICE int bool_to_int(int x) { return x; }
// Toward zero; saturates; 0 of NaN.
FULMEN_DEVICE int real_to_int(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0F) return 2147483647;
  return x <= -2147483648.0F ? -2147483647 - 1 : static_cast<int>(x);
}

// An index is inside of a dim of `extent` elements, at most 2^31: below 0 it is far beyond.
FULMEN_DEVICE bool inside(int index, Int64 extent) {
  return bits(index) < static_cast<unsigned>(extent);
}
// What a tensor holds, and how it is stored.
struct Boolean {
  unsigned char value;
};
struct Int8 {
  unsigned char value;
};
FULMEN_DEVICE float number_of(float x) { return x; }
FULMEN_DEVICE float number_of(Half x) { return to_float(x); }
FULMEN_DEVICE float number_of(Bfloat16 x) { return to_float(x); }
FULMEN_DEVICE int number_of(int x) { return x; }
FULMEN_DEVICE int number_of(Int64 x) {
  return x < -2147483647LL - 1 ? -2147483647 - 1
         : x > 2147483647      ? 2147483647
                               : static_cast<int>(x);
}
FULMEN_DEVICE int number_of(Int8 x) { return static_cast<signed char>(x.value); }
FULMEN_DEVICE int number_of(unsigned char x) { return x; }
FULMEN_DEVICE bool number_of(Boolean x) { return x.value != 0; }

// An element, or 0 where `there` says no: then the tensor's first element is read instead, as a
// branch around each load would hold up all that follows.
template <class T, class Offset>
FULMEN_DEVICE auto load(const void* data, bool there, Offset offset) {
  const auto number =
      number_of(global_load(static_cast<const T*>(data) + (there ? offset : Offset{})));
  return there ? number : decltype(number_of(T{})){};
}

}  // namespace fulmen::kernels::score_operations
