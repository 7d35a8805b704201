// The operations of score functions over vectors of elements: plain loops, which the compiler
// vectorises for each instruction set, and the set's own exponential.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/tile_function.h"
#include "score/node.h"

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

// Elements of an operation's argument: rows, `stride` elements apart.
struct Rows {
  const float* first = nullptr;
  int64_t stride = 0;
};

// A step of an operation. What it writes is none of its arguments, so that the loop becomes vectors
// without a question at run time.
template <class A, class B, class To, class F>
FULMEN_INLINE void apply_step(const A* a, const B* b, const B* c, To* __restrict to, F f) {
#ifndef __clang__  // which takes __restrict's word
#pragma GCC ivdep
#endif
  for (int i = 0; i < kFunctionStep; ++i) to[i] = static_cast<To>(f(a[i], b[i], c[i]));
}

// to: [rows][count]. count: a multiple of kFunctionStep.
template <class Isa>
__attribute__((noinline)) void apply_vectors(score::Op op, score::Type type, int rows, int count,
                                             Rows first, Rows second, Rows third, float* to) {
  static_assert(kFunctionStep % Isa::kLanes == 0);
  using score::Op;
  // f(a, b, c, to) of each step of each row.
  const auto steps = [&](auto f) __attribute__((always_inline)) {
    for (int row = 0; row < rows; ++row) {
      const float* a = first.first + first.stride * row;
      const float* b = second.first + second.stride * row;
      const float* c = third.first + third.stride * row;
      for (int at = 0; at < count; at += kFunctionStep, to += kFunctionStep)
        f(a + at, b + at, c + at, to);
    }
  };
  const auto vectors = [&](auto f) __attribute__((always_inline)) {
    steps([&](const float* a, const float* b, const float*, float* x)
              __attribute__((always_inline)) {
                for (int at = 0; at < kFunctionStep; at += Isa::kLanes)
                  Isa::store(x + at, f(Isa::load(a + at), Isa::load(b + at), Isa::zero()));
              });
  };
  const auto each = [&](auto as, auto bs, auto result, auto f) __attribute__((always_inline)) {
    using A = decltype(as);
    using B = decltype(bs);
    steps([&](const float* a, const float* b, const float* c,
              float* x) __attribute__((always_inline)) {
      apply_step(reinterpret_cast<const A*>(a), reinterpret_cast<const B*>(b),
                 reinterpret_cast<const B*>(c), reinterpret_cast<decltype(result)*>(x), f);
    });
  };
  const auto reals = [&](auto f) __attribute__((always_inline)) { each(0.0F, 0.0F, 0.0F, f); };
  const auto truths = [&](auto f) __attribute__((always_inline)) { each(0.0F, 0.0F, 0, f); };
  const auto integers = [&](auto f) __attribute__((always_inline)) { each(0U, 0U, 0U, f); };
  const auto signed_integers = [&](auto f) __attribute__((always_inline)) { each(0, 0, 0, f); };
#define FULMEN_LANES(...)                                     \
  [](auto x, auto y, auto z) __attribute__((always_inline)) { \
    (void)y;                                                  \
    (void)z;                                                  \
    return __VA_ARGS__;                                       \
  }
  switch (op) {
    case Op::constant:
    case Op::score:
    case Op::batch:
    case Op::head:
    case Op::query:
    case Op::key:
    case Op::load:
      return;
    case Op::negate:
      return reals(FULMEN_LANES(-x));
    case Op::abs:
      return reals(FULMEN_LANES(__builtin_fabsf(x)));
    case Op::exp:
      return vectors(FULMEN_LANES(exp_of<Isa>(x)));
    case Op::exp2:
      return vectors(FULMEN_LANES(exp2_of<Isa>(x)));
    case Op::log:
      return reals(FULMEN_LANES(__builtin_logf(x)));
    case Op::log2:
      return reals(FULMEN_LANES(__builtin_log2f(x)));
    case Op::tanh:
      return vectors(FULMEN_LANES(tanh_of<Isa>(x)));
    case Op::sqrt:
      return reals(FULMEN_LANES(__builtin_sqrtf(x)));
    case Op::rsqrt:
      return reals(FULMEN_LANES(1.0F / __builtin_sqrtf(x)));
    case Op::sigmoid:
      return vectors(FULMEN_LANES(sigmoid_of<Isa>(x)));
    case Op::sin:
      return reals(FULMEN_LANES(__builtin_sinf(x)));
    case Op::cos:
      return reals(FULMEN_LANES(__builtin_cosf(x)));
    case Op::erf:
      return reals(FULMEN_LANES(__builtin_erff(x)));
    case Op::floor:
      return reals(FULMEN_LANES(__builtin_floorf(x)));
    case Op::ceil:
      return reals(FULMEN_LANES(__builtin_ceilf(x)));
    case Op::round:
      return reals(FULMEN_LANES(__builtin_nearbyintf(x)));
    case Op::trunc:
      return reals(FULMEN_LANES(__builtin_truncf(x)));
    case Op::add:
      return reals(FULMEN_LANES(x + y));
    case Op::subtract:
      return reals(FULMEN_LANES(x - y));
    case Op::multiply:
      return reals(FULMEN_LANES(x * y));
    case Op::divide:
      return reals(FULMEN_LANES(x / y));
    case Op::min:
      return reals(FULMEN_LANES(x != x || y != y ? x + y : x < y ? x : y));
    case Op::max:
      return reals(FULMEN_LANES(x != x || y != y ? x + y : x > y ? x : y));
    case Op::power:
      return reals(FULMEN_LANES(__builtin_powf(x, y)));
    case Op::less:
      return truths(FULMEN_LANES(x < y));
    case Op::less_equal:
      return truths(FULMEN_LANES(x <= y));
    case Op::equal:
      return truths(FULMEN_LANES(x == y));
    case Op::not_equal:
      return truths(FULMEN_LANES(x != y));
    case Op::is_nan:
      return truths(FULMEN_LANES(x != x));
    case Op::int_negate:
      return integers(FULMEN_LANES(0U - x));
    case Op::int_abs:
      return signed_integers(
          FULMEN_LANES(x < 0 ? static_cast<int32_t>(0U - static_cast<uint32_t>(x)) : x));
    case Op::int_invert:
      return integers(FULMEN_LANES(~x));
    case Op::int_add:
      return integers(FULMEN_LANES(x + y));
    case Op::int_subtract:
      return integers(FULMEN_LANES(x - y));
    case Op::int_multiply:
      return integers(FULMEN_LANES(x * y));
    case Op::floor_divide:
      return signed_integers(FULMEN_LANES(quotient_of(x, y)));
    case Op::modulo:
      return signed_integers(FULMEN_LANES(rest_of(x, y)));
    case Op::shift_left:
      return integers(FULMEN_LANES(x << (y & 31U)));
    case Op::shift_right:
      return signed_integers(FULMEN_LANES(x >> (y & 31)));
    case Op::int_min:
      return signed_integers(FULMEN_LANES(x < y ? x : y));
    case Op::int_max:
      return signed_integers(FULMEN_LANES(x > y ? x : y));
    case Op::bit_and:
      return integers(FULMEN_LANES(x & y));
    case Op::bit_xor:
      return integers(FULMEN_LANES(x ^ y));
    case Op::bit_or:
      return integers(FULMEN_LANES(x | y));
    case Op::int_less:
      return signed_integers(FULMEN_LANES(x < y ? 1 : 0));
    case Op::int_less_equal:
      return signed_integers(FULMEN_LANES(x <= y ? 1 : 0));
    case Op::int_equal:
      return signed_integers(FULMEN_LANES(x == y ? 1 : 0));
    case Op::int_not_equal:
      return signed_integers(FULMEN_LANES(x != y ? 1 : 0));
    case Op::logical_not:
      return signed_integers(FULMEN_LANES(x == 0 ? 1 : 0));
    case Op::select:
      if (type == score::Type::real) return each(0, 0.0F, 0.0F, FULMEN_LANES(x != 0 ? y : z));
      return signed_integers(FULMEN_LANES(x != 0 ? y : z));
    case Op::int_to_real:
      return each(0, 0, 0.0F, FULMEN_LANES(static_cast<float>(x)));
    case Op::real_to_int:
      return each(0.0F, 0.0F, 0, FULMEN_LANES(truncated(x)));
    case Op::bool_to_int:
      return signed_integers(FULMEN_LANES(x));
  }
#undef FULMEN_LANES
}

}  // namespace fulmen::cpu
