// What each operation computes, for one pair: the definition that every evaluator keeps to.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "score/node.h"

namespace fulmen::score {

constexpr int32_t wrap(int64_t x) noexcept {
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(x)));
}
constexpr int32_t saturate(int64_t x) noexcept {
  constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(),
                    kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(x < kLeast ? kLeast : x > kMost ? kMost : x);
}
constexpr int32_t floor_divide(int32_t a, int32_t b) noexcept {
  if (b == 0) return 0;
  const int64_t quotient = int64_t{a} / b, rest = int64_t{a} % b;
  return wrap(rest != 0 && (rest < 0) != (b < 0) ? quotient - 1 : quotient);
}
constexpr int32_t modulo(int32_t a, int32_t b) noexcept {
  if (b == 0) return 0;
  const int64_t rest = int64_t{a} % b;
  return static_cast<int32_t>(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}
template <class Real>
int32_t truncate(Real x) noexcept {
  if (std::isnan(x)) return 0;
  if (x >= Real(2147483648.0)) return std::numeric_limits<int32_t>::max();
  if (x <= Real(-2147483648.0)) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(x);
}

// Of all operations that have arguments, but a load.
template <class Real>
BasicValue<Real> apply(Op op, const BasicValue<Real>& x, const BasicValue<Real>& y,
                       const BasicValue<Real>& z) noexcept {
  const Real a = x.real, b = y.real;
  const int32_t i = x.integer, j = y.integer;
  const auto real = [](Real value) { return BasicValue<Real>{value, 0}; };
  const auto integer = [](int64_t value) { return BasicValue<Real>{0, wrap(value)}; };
  const bool any_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case Op::constant:
    case Op::score:
    case Op::batch:
    case Op::head:
    case Op::query:
    case Op::key:
    case Op::load:
      return {};
    case Op::negate:
      return real(-a);
    case Op::abs:
      return real(std::fabs(a));
    case Op::exp:
      return real(std::exp(a));
    case Op::exp2:
      return real(std::exp2(a));
    case Op::log:
      return real(std::log(a));
    case Op::log2:
      return real(std::log2(a));
    case Op::tanh:
      return real(std::tanh(a));
    case Op::sqrt:
      return real(std::sqrt(a));
    case Op::rsqrt:
      return real(1 / std::sqrt(a));
    case Op::sigmoid:
      return real(1 / (1 + std::exp(-a)));
    case Op::sin:
      return real(std::sin(a));
    case Op::cos:
      return real(std::cos(a));
    case Op::erf:
      return real(std::erf(a));
    case Op::floor:
      return real(std::floor(a));
    case Op::ceil:
      return real(std::ceil(a));
    case Op::round:
      return real(std::nearbyint(a));
    case Op::trunc:
      return real(std::trunc(a));
    case Op::add:
      return real(a + b);
    case Op::subtract:
      return real(a - b);
    case Op::multiply:
      return real(a * b);
    case Op::divide:
      return real(a / b);
    case Op::min:
      return real(any_nan ? a + b : a < b ? a : b);
    case Op::max:
      return real(any_nan ? a + b : a > b ? a : b);
    case Op::power:
      return real(std::pow(a, b));
    case Op::less:
      return integer(a < b);
    case Op::less_equal:
      return integer(a <= b);
    case Op::equal:
      return integer(a == b);
    case Op::not_equal:
      return integer(a != b);
    case Op::int_negate:
      return integer(-int64_t{i});
    case Op::int_abs:
      return integer(i < 0 ? -int64_t{i} : i);
    case Op::int_invert:
      return integer(~i);
    case Op::int_add:
      return integer(int64_t{i} + j);
    case Op::int_subtract:
      return integer(int64_t{i} - j);
    case Op::int_multiply:
      return integer(int64_t{i} * j);
    case Op::floor_divide:
      return integer(floor_divide(i, j));
    case Op::modulo:
      return integer(modulo(i, j));
    case Op::shift_left:
      return integer(int64_t{i} * (int64_t{1} << (j & 31)));
    case Op::shift_right:
      return integer(i >> (j & 31));
    case Op::int_min:
      return integer(i < j ? i : j);
    case Op::int_max:
      return integer(i > j ? i : j);
    case Op::bit_and:
      return integer(i & j);
    case Op::bit_xor:
      return integer(i ^ j);
    case Op::bit_or:
      return integer(i | j);
    case Op::int_less:
      return integer(i < j);
    case Op::int_less_equal:
      return integer(i <= j);
    case Op::int_equal:
      return integer(i == j);
    case Op::int_not_equal:
      return integer(i != j);
    case Op::logical_not:
      return integer(i == 0);
    case Op::is_nan:
      return integer(std::isnan(a));
    case Op::select:
      return i != 0 ? y : z;
    case Op::int_to_real:
      return real(static_cast<Real>(i));
    case Op::real_to_int:
      return integer(truncate(a));
    case Op::bool_to_int:
      return x;
  }
  return {};
}

}  // namespace fulmen::score
