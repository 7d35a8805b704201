// The operations of score functions over vectors, for generated code: bit for bit those of
// function_vectors.h. Embedded as text, and compiled at run time alone.
#pragma once

#include "cpu/tile/function_math.h"
#include "cpu/tile/inline.h"
#include "cpu/tile/pairs_call.h"

namespace fulmen::cpu {

// Isa: an instruction set's numbers. A truth is 0 or 1.
template <class Isa>
struct PairOperations {
  static constexpr int kLanes = Isa::kLanes;
  using Real = typename Isa::Vec;
  typedef int32_t Int __attribute__((vector_size(4 * Isa::kLanes)));
  typedef uint32_t Bits __attribute__((vector_size(4 * Isa::kLanes)));

  FULMEN_INLINE static Real read(const float* p) { return Isa::load(p); }
  FULMEN_INLINE static Int read_int(const float* p) {
    Int x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  FULMEN_INLINE static void write(float* p, Real x) { Isa::store(p, x); }
  FULMEN_INLINE static void write(float* p, Int x) { __builtin_memcpy(p, &x, sizeof x); }
  FULMEN_INLINE static Real repeat(const float* p) { return Isa::set1(*p); }
  FULMEN_INLINE static Int repeat_int(const float* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return x - Int{};
  }

  FULMEN_INLINE static Int truth(Int mask) { return mask & 1; }
  template <class T>
  FULMEN_INLINE static T choose(Int mask, T x, T y) {
    return (T)(((Int)x & mask) | ((Int)y & ~mask));
  }
  // f of each lane: a loop over memory, which becomes vectors where f does.
  template <class To, class A, class B, class F>
  FULMEN_INLINE static To each(A a, B b, F f) {
    using X = __typeof__(a[0] + a[0]);
    using Y = __typeof__(b[0] + b[0]);
    X x[kLanes];
    Y y[kLanes];
    __typeof__(f(x[0], y[0])) z[kLanes];
    __builtin_memcpy(x, &a, sizeof a);
    __builtin_memcpy(y, &b, sizeof b);
    for (int i = 0; i < kLanes; ++i) z[i] = f(x[i], y[i]);
    To to;
    __builtin_memcpy(&to, z, sizeof to);
    return to;
  }
  template <class F>
  FULMEN_INLINE static Real reals(Real x, F f) {
    return each<Real>(x, x, [&](float a, float) __attribute__((always_inline)) { return f(a); });
  }

  FULMEN_INLINE static Real negate(Real x) { return -x; }
  FULMEN_INLINE static Real abs(Real x) { return Isa::abs(x); }
  FULMEN_INLINE static Real exp(Real x) { return exp_of<Isa>(x); }
  FULMEN_INLINE static Real exp2(Real x) { return exp2_of<Isa>(x); }
  FULMEN_INLINE static Real tanh(Real x) { return tanh_of<Isa>(x); }
  FULMEN_INLINE static Real sigmoid(Real x) { return sigmoid_of<Isa>(x); }
  FULMEN_INLINE static Real sqrt(Real x) { return Isa::sqrt(x); }
  FULMEN_INLINE static Real rsqrt(Real x) { return Isa::div(Isa::set1(1.0F), Isa::sqrt(x)); }
  FULMEN_INLINE static Real floor(Real x) { return Isa::floor(x); }
  FULMEN_INLINE static Real ceil(Real x) { return Isa::ceil(x); }
  FULMEN_INLINE static Real round(Real x) { return Isa::round(x); }
  FULMEN_INLINE static Real trunc(Real x) { return Isa::trunc(x); }
  FULMEN_INLINE static Real log(Real x) {
    return reals(x, [](float a) { return __builtin_logf(a); });
  }
  FULMEN_INLINE static Real log2(Real x) {
    return reals(x, [](float a) { return __builtin_log2f(a); });
  }
  FULMEN_INLINE static Real sin(Real x) {
    return reals(x, [](float a) { return __builtin_sinf(a); });
  }
  FULMEN_INLINE static Real cos(Real x) {
    return reals(x, [](float a) { return __builtin_cosf(a); });
  }
  FULMEN_INLINE static Real erf(Real x) {
    return reals(x, [](float a) { return __builtin_erff(a); });
  }
  FULMEN_INLINE static Real pow(Real x, Real y) {
    return each<Real>(x, y, [](float a, float b) { return __builtin_powf(a, b); });
  }

  FULMEN_INLINE static Real add(Real x, Real y) { return x + y; }
  FULMEN_INLINE static Real subtract(Real x, Real y) { return x - y; }
  FULMEN_INLINE static Real multiply(Real x, Real y) { return x * y; }
  FULMEN_INLINE static Real divide(Real x, Real y) { return x / y; }
  FULMEN_INLINE static Real min(Real x, Real y) {
    return choose(x != x | y != y, x + y, choose(x < y, x, y));
  }
  FULMEN_INLINE static Real max(Real x, Real y) {
    return choose(x != x | y != y, x + y, choose(x > y, x, y));
  }
  FULMEN_INLINE static Int less(Real x, Real y) { return truth(x < y); }
  FULMEN_INLINE static Int less_equal(Real x, Real y) { return truth(x <= y); }
  FULMEN_INLINE static Int equal(Real x, Real y) { return truth(x == y); }
  FULMEN_INLINE static Int not_equal(Real x, Real y) { return truth(x != y); }
  FULMEN_INLINE static Int isnan(Real x) { return truth(x != x); }

  FULMEN_INLINE static Int int_negate(Int x) { return (Int)(0U - (Bits)x); }
  FULMEN_INLINE static Int int_abs(Int x) { return choose(x < 0, int_negate(x), x); }
  FULMEN_INLINE static Int int_invert(Int x) { return ~x; }
  FULMEN_INLINE static Int int_add(Int x, Int y) { return (Int)((Bits)x + (Bits)y); }
  FULMEN_INLINE static Int int_subtract(Int x, Int y) { return (Int)((Bits)x - (Bits)y); }
  FULMEN_INLINE static Int int_multiply(Int x, Int y) { return (Int)((Bits)x * (Bits)y); }
  FULMEN_INLINE static Int floor_divide(Int x, Int y) {
    return each<Int>(x, y, [](int32_t a, int32_t b) __attribute__((always_inline)) {
      return quotient_of(a, b);
    });
  }
  FULMEN_INLINE static Int modulo(Int x, Int y) {
    return each<Int>(
        x, y, [](int32_t a, int32_t b) __attribute__((always_inline)) { return rest_of(a, b); });
  }
  FULMEN_INLINE static Int shift_left(Int x, Int y) { return (Int)((Bits)x << ((Bits)y & 31U)); }
  FULMEN_INLINE static Int shift_right(Int x, Int y) { return x >> (y & 31); }
  FULMEN_INLINE static Int int_min(Int x, Int y) { return choose(x < y, x, y); }
  FULMEN_INLINE static Int int_max(Int x, Int y) { return choose(x > y, x, y); }
  FULMEN_INLINE static Int bit_and(Int x, Int y) { return x & y; }
  FULMEN_INLINE static Int bit_xor(Int x, Int y) { return x ^ y; }
  FULMEN_INLINE static Int bit_or(Int x, Int y) { return x | y; }
  FULMEN_INLINE static Int int_less(Int x, Int y) { return truth(x < y); }
  FULMEN_INLINE static Int int_less_equal(Int x, Int y) { return truth(x <= y); }
  FULMEN_INLINE static Int int_equal(Int x, Int y) { return truth(x == y); }
  FULMEN_INLINE static Int int_not_equal(Int x, Int y) { return truth(x != y); }
  FULMEN_INLINE static Int logical_not(Int x) { return truth(x == 0); }
  template <class T>
  FULMEN_INLINE static T select(Int c, T x, T y) {
    return choose(c != 0, x, y);
  }
  FULMEN_INLINE static Real int_to_real(Int x) { return __builtin_convertvector(x, Real); }
  FULMEN_INLINE static Int real_to_int(Real x) {
    return each<Int>(x, x,
                     [](float a, float) __attribute__((always_inline)) { return truncated(a); });
  }
  FULMEN_INLINE static Int bool_to_int(Int x) { return x; }

  // The elements at kDims indices; 0 where one is out of range, and nothing is read.
  template <class To, class Stored, int kDims, class Convert>
  FULMEN_INLINE static To load(const PairsTensor& tensor, const Int (&indices)[kDims],
                               Convert convert) {
    decltype(convert(Stored{})) values[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      int64_t offset = 0;
      bool inside = true;
      for (int d = 0; d < kDims; ++d) {
        const int64_t index = indices[d][i];
        const bool here = index >= 0 && index < tensor.shape[d];
        offset += here ? index * tensor.strides[d] : 0;
        inside = inside && here;
      }
      values[i] = {};
      if (inside) values[i] = convert(static_cast<const Stored*>(tensor.data)[offset]);
    }
    To to;
    __builtin_memcpy(&to, values, sizeof to);
    return to;
  }
};

}  // namespace fulmen::cpu
