// The vocabulary for any processor: vectors of 4 floats in the compiler's own vector type, which
// becomes SSE2, or whatever the target has, or plain scalar code. No intrinsics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "algorithm/exp2_polynomial.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

struct Scalar {
  using Vec = float __attribute__((vector_size(16)));
  using Bits = uint32_t __attribute__((vector_size(16)));
  using Half = uint16_t __attribute__((vector_size(8)));
  static constexpr const char* kName = "scalar";
  static constexpr int kLanes = 4;
  static constexpr int kGroup = 1;  // operand elements that share a 32-bit word: one fp32
  // Query vectors x key rows of the score product's register block: 8 sums, and 4 operands, since
  // without a fused instruction each product needs a register of its own.
  static constexpr int kQkVecs = 2;
  static constexpr int kQkKeys = 4;
  static constexpr int kPvVecs = 2;  // most output vectors of the second product's register block
  static constexpr int kPvRows = 4;  // its query rows
  static constexpr int kPvRowsNarrow = 4;
  static constexpr int kSoftmaxVecs = 2;  // query vectors whose exponentials are computed together
  static constexpr int kExp2Degree = 5;

  static Vec zero() { return Vec{}; }
  static Vec set1(float x) { return Vec{x, x, x, x}; }
  static Vec load(const float* p) { return load_as<Vec>(p); }
  static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof(x)); }
  static Vec broadcast(const float* p) { return set1(*p); }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec div(Vec a, Vec b) { return a / b; }
  // One rounding or two, as the target has it.
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  // a b + c, rounded once (hardly ever twice): for scores, whose errors the exponential multiplies.
  static Vec fused(Vec a, Vec b, Vec c) {
    using Wide = double __attribute__((vector_size(32)));
    return __builtin_convertvector(
        __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide) +
            __builtin_convertvector(c, Wide),
        Vec);
  }
  static Vec max(Vec a, Vec b) { return select(a > b, a, b); }  // a NaN in b is kept
  static Vec min(Vec a, Vec b) { return select(a < b, a, b); }  // a NaN in b is kept
  static Vec abs(Vec a) { return floats(bits(a) & 0x7FFFFFFFU); }
  static Vec iota() { return Vec{0, 1, 2, 3}; }
  // x < y ? a : b, lane by lane; false on NaN.
  static Vec select_less(Vec x, Vec y, Vec a, Vec b) { return select(x < y, a, b); }
  // test == -inf ? a : b.
  static Vec select_minus_infinity(Vec test, Vec a, Vec b) {
    return select(test == set1(-__builtin_inff()), a, b);
  }
  static Vec replace_minus_infinity(Vec x, Vec by) { return select_minus_infinity(x, by, x); }
  static bool all_equal(Vec a, Vec b) {
    return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
  }
  static float reduce_add(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float reduce_max(Vec x) {
    const float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
  }

  // 2^x; 0 for -inf and all below -127. x = n + f with n the nearest integer: adding 1.5 * 2^23
  // leaves it in the low bits, from where it is added to the exponent of 2^f. x stays under 128:
  // scores come here less their row's maximum.
  template <int kDegree = kExp2Degree, int kCount>
  static __attribute__((always_inline)) void exp2(Vec (&x)[kCount]) {
    constexpr const float* kC = algorithm::Exp2Centered<kDegree>::kCoefficients;
    const Vec shift = set1(12582912.0F);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Vec limited = max(set1(-127.0F), x[i]);
      const Vec shifted = limited + shift;
      const Vec f = limited - (shifted - shift);
      Vec p = set1(kC[kDegree]);
#pragma GCC unroll 8
      for (int power = kDegree - 1; power >= 0; --power) p = fma(p, f, set1(kC[power]));
      // A NaN's low bits are no integer: it stays as it is.
      // NOLINTNEXTLINE(misc-redundant-expression): false for a NaN
      x[i] = select(limited == limited, floats(bits(p) + (bits(shifted) << 23)), limited);
    }
  }
  template <int kDegree = kExp2Degree>
  static __attribute__((always_inline)) Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2<kDegree>(one);
    return one[0];
  }

  // sum + the products of the words' elements.
  static Vec dot(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }

  // n elements from p as floats, the rest of the lanes 0; reads nothing beyond them.
  static Vec load_as_float(const float* p) { return load(p); }
  static Vec load_as_float(const Fp16* p) { return widen_fp16(load_as<Half>(p)); }
  static Vec load_as_float(const Bf16* p) { return widen_bf16(load_as<Half>(p)); }
  static Vec load_as_float(const uint8_t* p) {  // booleans: 0 for false, above 0 for true
    return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
               static_cast<float>(p[3])};
  }
  static Vec load_as_float(const int8_t* p) {
    return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
               static_cast<float>(p[3])};
  }
  static Vec load_as_float(const float* p, int n) { return load_first<Vec>(p, n); }
  static Vec load_as_float(const Fp16* p, int n) { return widen_fp16(load_first<Half>(p, n)); }
  static Vec load_as_float(const Bf16* p, int n) { return widen_bf16(load_first<Half>(p, n)); }
  static Vec load_as_float(const uint8_t* p, int n) {
    Vec x{};
    for (int i = 0; i < n; ++i) x[i] = static_cast<float>(p[i]);
    return x;
  }

  static void store_from_float(float* p, Vec x) { store(p, x); }
  static void store_from_float(Fp16* p, Vec x) { store_first(p, narrow_fp16(x), kLanes); }
  static void store_from_float(Bf16* p, Vec x) { store_first(p, narrow_bf16(x), kLanes); }
  static void store_from_float(float* p, Vec x, int n) { store_first(p, x, n); }
  static void store_from_float(Fp16* p, Vec x, int n) { store_first(p, narrow_fp16(x), n); }
  static void store_from_float(Bf16* p, Vec x, int n) { store_first(p, narrow_bf16(x), n); }

  // rows[i] lane j <-> rows[j] lane i.
  static __attribute__((always_inline)) void transpose(Vec (&rows)[4]) {
    const Vec a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    rows[0] = Vec{a[0], b[0], c[0], d[0]};
    rows[1] = Vec{a[1], b[1], c[1], d[1]};
    rows[2] = Vec{a[2], b[2], c[2], d[2]};
    rows[3] = Vec{a[3], b[3], c[3], d[3]};
  }

  // Four vectors -> one that holds the four sums (maxima) across lanes.
  static Vec quad_add(const Vec (&x)[4]) {
    Vec t[4] = {x[0], x[1], x[2], x[3]};
    transpose(t);
    return (t[0] + t[2]) + (t[1] + t[3]);
  }
  static Vec quad_max(const Vec (&x)[4]) {
    Vec t[4] = {x[0], x[1], x[2], x[3]};
    transpose(t);
    return max(max(t[0], t[2]), max(t[1], t[3]));
  }
  static Vec load_quad(const float* p) { return load(p); }
  static void store_quad(float* p, Vec x) { store(p, x); }

  // The empty statement: g++ takes a function that only prefetches for one without effect, and
  // drops the call.
  static void prefetch(const void* p) {
    __builtin_prefetch(p);
    asm volatile("");
  }

  static Bits bits(Vec x) { return reinterpret_cast<Bits>(x); }
  static Vec floats(Bits x) { return reinterpret_cast<Vec>(x); }
  // mask: all ones or all zeros in each lane, as comparisons give it.
  template <class Mask>
  static Vec select(Mask mask, Vec a, Vec b) {
    const Bits m = reinterpret_cast<Bits>(mask);
    return floats((bits(a) & m) | (bits(b) & ~m));
  }
  static Bits select_bits(Bits mask, Bits a, Bits b) { return (a & mask) | (b & ~mask); }
  template <class To>
  static To load_as(const void* p) {
    To x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  template <class To>
  static To load_first(const void* p, int n) {
    To x{};
    std::memcpy(&x, p, static_cast<std::size_t>(n) * (sizeof(To) / kLanes));
    return x;
  }
  template <class From>
  static void store_first(void* p, From x, int n) {
    std::memcpy(p, &x, static_cast<std::size_t>(n) * (sizeof(From) / kLanes));
  }

  static Vec widen_bf16(Half x) { return floats(__builtin_convertvector(x, Bits) << 16); }
  static Half narrow_bf16(Vec x) {  // round to nearest even; a NaN stays one
    const Bits b = bits(x);
    const Bits rounded = b + ((b >> 16) & 1U) + 0x7FFFU;
    // NOLINTNEXTLINE(misc-redundant-expression): false for a NaN
    const Bits is_number = reinterpret_cast<Bits>(x == x);
    return __builtin_convertvector(select_bits(is_number, rounded, b | 0x400000U) >> 16, Half);
  }
  static Vec widen_fp16(Half x) {
    const Bits b = __builtin_convertvector(x, Bits);
    const Bits magnitude = b & 0x7FFFU;
    // Shifted into place the exponent is 112 too small; the product is exact, for subnormals too.
    const Bits scaled = bits(floats(magnitude << 13) * 0x1p112F);
    const Bits special = reinterpret_cast<Bits>(magnitude >= 0x7C00U);  // infinity, NaN
    return floats(select_bits(special, (magnitude << 13) | 0x7F800000U, scaled) | (b & 0x8000U)
                                                                                      << 16);
  }
  // Round to nearest even; 65520 and more become infinity; a NaN stays one.
  static Half narrow_fp16(Vec x) {
    const Bits b = bits(x);
    const Bits magnitude = b & 0x7FFFFFFFU;
    const Bits normal = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
    // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded to even, in the low mantissa.
    const Bits subnormal = bits(floats(magnitude) + set1(0.5F)) - 0x3F000000U;
    const Bits nan = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
    Bits half = select_bits(reinterpret_cast<Bits>(magnitude < 0x38800000U), subnormal, normal);
    half = select_bits(reinterpret_cast<Bits>(magnitude >= 0x477FF000U), Bits{} + 0x7C00U, half);
    // NOLINTNEXTLINE(misc-redundant-expression): true for a NaN
    half = select_bits(reinterpret_cast<Bits>(x != x), nan, half);
    return __builtin_convertvector(half | ((b >> 16) & 0x8000U), Half);
  }
};

}  // namespace fulmen::cpu
