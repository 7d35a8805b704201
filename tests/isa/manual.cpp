#include "isa/manual.h"

#include <bit>
#include <cmath>
#include <limits>

namespace fulmen::testing::manual {

double number(uint64_t x, Format f) {
  const int exponent_bits = f.mantissa == 10 ? 5 : 8, most = (1 << exponent_bits) - 1;
  const auto exponent = static_cast<int>(x >> f.mantissa & static_cast<uint64_t>(most));
  const auto fraction = static_cast<double>(x & ((uint64_t{1} << f.mantissa) - 1));
  const bool negative = (x >> (f.mantissa + exponent_bits) & 1U) != 0;
  double magnitude = 0;
  if (exponent == most) {
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else {
    const double whole = exponent == 0 ? fraction : fraction + std::ldexp(1.0, f.mantissa);
    magnitude = std::ldexp(whole, std::max(exponent, 1) - 1 + f.least - f.mantissa);
  }
  return negative ? -magnitude : magnitude;
}

uint64_t bits(double x, Format f, bool toward_zero) {
  const int exponent_bits = f.mantissa == 10 ? 5 : 8;
  const uint64_t sign = uint64_t{std::signbit(x)} << (f.mantissa + exponent_bits);
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << f.mantissa;
  if (std::isnan(x)) return sign | infinity | uint64_t{1} << (f.mantissa - 1);
  if (std::isinf(x)) return sign | infinity;
  if (x == 0) return sign;
  const int exponent = std::max(std::ilogb(x), f.least);
  const double units = std::ldexp(std::fabs(x), f.mantissa - exponent);
  const auto whole = static_cast<uint64_t>(toward_zero ? std::floor(units) : std::nearbyint(units));
  const uint64_t result = (static_cast<uint64_t>(exponent - f.least) << f.mantissa) + whole;
  if (result >= infinity) return sign | (toward_zero ? infinity - 1 : infinity);
  return sign | result;
}

double odd_sum(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - a, error = (a - (sum - part)) + (b - part);
  if (error == 0 || (std::bit_cast<uint64_t>(sum) & 1U) != 0) return sum;
  return std::nextafter(sum, error > 0 ? HUGE_VAL : -HUGE_VAL);
}

}  // namespace fulmen::testing::manual
