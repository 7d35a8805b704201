// The inner loops of standard attention and of the oracle, in vectors of 64 bytes that the compiler lowers to what each clone's
// target has. They are compiled for three x86 levels and chosen at run time, so that the baseline is not held back by the library's
// x86-64 build.
#include "reference/oracle/row_loops.h"

#include <cstring>
#include <limits>

#include "runtime/fork_safe.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call that is not inlined
#endif

namespace fulmen::reference {
namespace {

constexpr int kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(float))));
using Bits = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0 to about 1 ulp; 0 below -87.3, where the result would be subnormal; NaN stays NaN.
[[gnu::always_inline]] inline void exp_in_place(Floats& x) noexcept {
  // Adding 1.5 * 2^23 rounds to an integer in the low bits: no conversion that a NaN could upset.
  const Floats shifted = x * 1.44269504F + 12582912.0F;
  const Floats whole = shifted - 12582912.0F;
  const Floats r = (x - whole * 0.693145752F) - whole * 1.42860677e-6F;
  Floats poly = r * 1.9875691500e-4F + 1.3981999507e-3F;  // the minimax coefficients of Cephes' expf
  poly = poly * r + 8.3334519073e-3F;
  poly = poly * r + 4.1665795894e-2F;
  poly = poly * r + 1.6666665459e-1F;
  poly = poly * r + 5.0000001201e-1F;
  poly = poly * (r * r) + r + 1.0F;
  const Bits exponent = (reinterpret_cast<Bits>(shifted) << 23) + (127U << 23);
  const Floats result = poly * reinterpret_cast<Floats>(exponent);
  x = x < -87.3F ? Floats{} : result;
}

[[gnu::always_inline]] inline float softmax_body(float* scores, int64_t count, float sink) noexcept {
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
[[gnu::always_inline]] inline void add_scaled_body(Real* acc, const Real* x, Real factor, int64_t count) noexcept {
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

struct Clones {
  float (*softmax)(float*, int64_t, float) noexcept;
  void (*add_scaled_floats)(float*, const float*, float, int64_t) noexcept;
  void (*add_scaled_doubles)(double*, const double*, double, int64_t) noexcept;
};

float softmax_baseline(float* scores, int64_t count, float sink) noexcept { return softmax_body(scores, count, sink); }
void add_floats_baseline(float* acc, const float* x, float factor, int64_t count) noexcept {
  add_scaled_body<Floats>(acc, x, factor, count);
}
void add_doubles_baseline(double* acc, const double* x, double factor, int64_t count) noexcept {
  add_scaled_body<Doubles>(acc, x, factor, count);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float softmax_avx2(float* scores, int64_t count, float sink) noexcept {
  return softmax_body(scores, count, sink);
}
[[gnu::target("avx2,fma")]] void add_floats_avx2(float* acc, const float* x, float factor, int64_t count) noexcept {
  add_scaled_body<Floats>(acc, x, factor, count);
}
[[gnu::target("avx2,fma")]] void add_doubles_avx2(double* acc, const double* x, double factor, int64_t count) noexcept {
  add_scaled_body<Doubles>(acc, x, factor, count);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] float softmax_avx512(float* scores, int64_t count, float sink) noexcept {
  return softmax_body(scores, count, sink);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void add_floats_avx512(float* acc, const float* x, float factor,
                                                                        int64_t count) noexcept {
  add_scaled_body<Floats>(acc, x, factor, count);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void add_doubles_avx512(double* acc, const double* x, double factor,
                                                                         int64_t count) noexcept {
  add_scaled_body<Doubles>(acc, x, factor, count);
}
#endif

Clones choose_clones() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {softmax_avx512, add_floats_avx512, add_doubles_avx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {softmax_avx2, add_floats_avx2, add_doubles_avx2};
#endif
  return {softmax_baseline, add_floats_baseline, add_doubles_baseline};
}

const Clones& clones() noexcept {
  constinit static MadeOnce<const Clones> chosen;
  return chosen.get(choose_clones);
}

}  // namespace

float softmax_row(float* scores, int64_t count, float sink) noexcept {
  if (count == 0) return sink < kInfinity ? sink : __builtin_nanf("");  // scores may be null
  return clones().softmax(scores, count, sink);
}

void add_scaled(float* acc, const float* x, float factor, int64_t count) noexcept {
  clones().add_scaled_floats(acc, x, factor, count);
}

void add_scaled(double* acc, const double* x, double factor, int64_t count) noexcept {
  clones().add_scaled_doubles(acc, x, factor, count);
}

}  // namespace fulmen::reference
