// The operations of score functions over vectors of elements: plain loops, which the compiler
// vectorises for each instruction set, and the set's own exponential.
#pragma once

#include <cstdint>

#include "cpu/tile/function_math.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/tile_function.h"
#include "score/node.h"

namespace fulmen::cpu {

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
