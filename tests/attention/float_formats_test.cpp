// fp16 and bf16 conversions against their definitions, for every bit pattern.
#include "runtime/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fulmen::reference {
namespace {

// The value of a 16-bit pattern from its fields.
double value_of(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent_bits = 15 - mantissa_bits;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class From, class To>
void check_format(const From& from, const To& to, int mantissa_bits, int bias) {
  const int infinity = (0x7FFF >> mantissa_bits) << mantissa_bits;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const double expected = value_of(static_cast<uint16_t>(bits), mantissa_bits, bias);
    const float value = from(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(from(to(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(to(value), bits);
  }
  // Between neighbours: just under, at and just over the middle, where a tie goes to the even
  // pattern.
  for (int bits = 0; bits + 1 < infinity; ++bits) {
    const double low = from(static_cast<uint16_t>(bits));
    const double high = from(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    // bf16 subnormals: float has no value in between.
    if (static_cast<double>(middle) != (low + high) / 2) continue;
    ASSERT_EQ(to(middle), bits + bits % 2) << bits;
    ASSERT_EQ(to(std::nextafter(middle, 0.0F)),
              middle == std::nextafter(middle, 0.0F) ? bits + bits % 2 : bits)
        << bits;
    ASSERT_EQ(to(std::nextafter(middle, HUGE_VALF)), bits + 1) << bits;
    ASSERT_EQ(to(-middle), 0x8000 | (bits + bits % 2)) << bits;
  }
  const double largest = from(static_cast<uint16_t>(infinity - 1));
  const double step = largest - from(static_cast<uint16_t>(infinity - 2));
  ASSERT_EQ(to(std::nextafter(static_cast<float>(largest + step / 2), 0.0F)), infinity - 1);
  ASSERT_EQ(to(static_cast<float>(largest + step / 2)), infinity);
}

TEST(FloatFormats, Fp16) { check_format(from_fp16, to_fp16, 10, 15); }
TEST(FloatFormats, Bf16) { check_format(from_bf16, to_bf16, 7, 127); }

}  // namespace
}  // namespace fulmen::reference
