// Clones of the loops in row_vectors.h for three x86 levels, one of which is chosen at run time:
// the library is built for x86-64's first level, which would hold the baseline back.
#include "reference/row_loops.h"

#include "reference/row_vectors.h"
#include "runtime/fork_safe.h"

namespace fulmen::reference {
namespace {

struct Clones {
  float (*softmax)(float*, int64_t, float) noexcept;
  void (*add_scaled_floats)(float*, const float*, float, int64_t) noexcept;
  void (*add_scaled_doubles)(double*, const double*, double, int64_t) noexcept;
};

float softmax_baseline(float* scores, int64_t count, float sink) noexcept {
  return softmax_body(scores, count, sink);
}
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
[[gnu::target("avx2,fma")]] void add_floats_avx2(float* acc, const float* x, float factor,
                                                 int64_t count) noexcept {
  add_scaled_body<Floats>(acc, x, factor, count);
}
[[gnu::target("avx2,fma")]] void add_doubles_avx2(double* acc, const double* x, double factor,
                                                  int64_t count) noexcept {
  add_scaled_body<Doubles>(acc, x, factor, count);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] float softmax_avx512(float* scores, int64_t count,
                                                                      float sink) noexcept {
  return softmax_body(scores, count, sink);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void add_floats_avx512(float* acc, const float* x,
                                                                        float factor,
                                                                        int64_t count) noexcept {
  add_scaled_body<Floats>(acc, x, factor, count);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void add_doubles_avx512(double* acc,
                                                                         const double* x,
                                                                         double factor,
                                                                         int64_t count) noexcept {
  add_scaled_body<Doubles>(acc, x, factor, count);
}
#endif

Clones choose_clones() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return {softmax_avx512, add_floats_avx512, add_doubles_avx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {softmax_avx2, add_floats_avx2, add_doubles_avx2};
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
