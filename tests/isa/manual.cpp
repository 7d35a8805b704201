#include "isa/manual.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>

namespace fulmen::testing::manual {

namespace {

// Names of gfx942's that gfx906 does not have, and of gfx11's that gfx10 does not have: where it
// has the instruction, it is by gfx9's name.
const std::set<std::string> kNotGfx906{"v_lshl_add_u64"};
const std::set<std::string> kNotGfx10{
    "s_and_not1_b32", "s_and_not1_b64", "s_clz_i32_u32",   "s_ctz_i32_b32", "s_or_not1_b32",
    "s_or_not1_b64",  "v_clz_i32_u32",  "v_cls_i32",       "v_ctz_i32_b32", "v_cvt_pk_rtz_f16_f32",
    "v_maxmin_f32",   "v_maxmin_i32",   "v_dot2_f32_bf16", "v_maxmin_u32",  "v_minmax_f32",
    "v_minmax_i32",   "v_minmax_u32"};

std::string text(const char* name) { return name == nullptr ? "" : name; }

}  // namespace

std::string name_of(const Names& names, Family family) {
  const std::string own = text(names[static_cast<std::size_t>(family)]);
  if (!own.empty() || (family != Family::gfx906 && family != Family::gfx10)) return own;
  const std::string gfx9 = text(names[static_cast<std::size_t>(Family::gfx9)]),
                    gfx11 = text(names[static_cast<std::size_t>(Family::gfx11)]);
  if (family == Family::gfx906) return kNotGfx906.contains(gfx9) ? "" : gfx9;
  return kNotGfx10.contains(gfx11) ? gfx9 : gfx11;
}

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
