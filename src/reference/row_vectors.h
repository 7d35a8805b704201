// The loops of row_loops.h over vectors of 64 bytes, which the compiler lowers to what the target
// of the calling function has.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call that is not inlined
#endif

namespace fulmen::reference {

inline constexpr int kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(float))));
using Bits = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0 to about 1 ulp; 0 below -87.3, where the result would be subnormal; NaN stays NaN.
[[gnu::always_inline]] inline void exp_in_place(Floats& x) noexcept {
  // Adding 1.5 * 2^23 rounds to an integer in the low bits: no conversion that a NaN could upset.
  const Floats shifted = x * 1.44269504F + 12582912.0F;
  const Floats whole = shifted - 12582912.0F;
  const Floats r = (x - whole * 0.693145752F) - whole * 1.42860677e-6F;
  // The minimax coefficients of Cephes' expf.
  Floats poly = r * 1.9875691500e-4F + 1.3981999507e-3F;
  poly = poly * r + 8.3334519073e-3F;
  poly = poly * r + 4.1665795894e-2F;
  poly = poly * r + 1.6666665459e-1F;
  poly = poly * r + 5.0000001201e-1F;
  poly = poly * (r * r) + r + 1.0F;
  const Bits exponent = (reinterpret_cast<Bits>(shifted) << 23) + (127U << 23);
  const Floats result = poly * reinterpret_cast<Floats>(exponent);
  x = x < -87.3F ? Floats{} : result;
}

// softmax_row() of one score or more.
[[gnu::always_inline]] inline float softmax_body(float* scores, int64_t count,
                                                 float sink) noexcept {
  const int64_t whole = count / kLanes * kLanes;
  const std::size_t rest = static_cast<std::size_t>(count - whole) * sizeof(float);
  const Floats nothing = Floats{} - kInfinity;
  Floats tail = nothing;
  std::memcpy(&tail, scores + whole, rest);

  Floats maxima = nothing;
  Floats x;
  for (int64_t j = 0; j < whole; j += kLanes) {
    std::memcpy(&x, scores + j, sizeof(x));
    maxima = x > maxima ? x : maxima;
  }
  maxima = tail > maxima ? tail : maxima;
  float max = sink;
  for (int lane = 0; lane < kLanes; ++lane) max = maxima[lane] > max ? maxima[lane] : max;
  if (max == -kInfinity) max = 0;  // -inf minus 0 is still nothing; NaN is still NaN

  Floats sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    std::memcpy(&x, scores + j, sizeof(x));
    x = x - max;
    exp_in_place(x);
    sums = sums + x;
    std::memcpy(scores + j, &x, sizeof(x));
  }
  tail = tail - max;
  exp_in_place(tail);
  sums = sums + tail;
  float sum = sink == -kInfinity ? 0.0F : __builtin_expf(sink - max);
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  if (sum == 0) {
    std::memset(scores, 0, static_cast<std::size_t>(count) * sizeof(float));
    return -kInfinity;
  }

  const float inverse = 1.0F / sum;
  for (int64_t j = 0; j < whole; j += kLanes) {
    std::memcpy(&x, scores + j, sizeof(x));
    x = x * inverse;
    std::memcpy(scores + j, &x, sizeof(x));
  }
  tail = tail * inverse;
  std::memcpy(scores + whole, &tail, rest);
  return max + __builtin_logf(sum);
}

template <class Vector, class Real>
[[gnu::always_inline]] inline void add_scaled_body(Real* acc, const Real* x, Real factor,
                                                   int64_t count) noexcept {
  constexpr int64_t kStep = sizeof(Vector) / sizeof(Real);
  int64_t j = 0;
  Vector a;
  Vector b;
  for (; j + kStep <= count; j += kStep) {
    std::memcpy(&a, acc + j, sizeof(a));
    std::memcpy(&b, x + j, sizeof(b));
    a = a + b * factor;
    std::memcpy(acc + j, &a, sizeof(a));
  }
  for (; j < count; ++j) acc[j] += factor * x[j];
}

}  // namespace fulmen::reference
