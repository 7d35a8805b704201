#include "rounding.h"

#include <bit>
#include <cstring>

#include "fulmen/fulmen_c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fulmen_integrations {
namespace {

#if defined(__aarch64__)
using Half = __fp16;  // g++ 12 has no _Float16 here in C++
#else
using Half = _Float16;
#endif

#if defined(__x86_64__)
// Without these instructions a compiler calls a function for each number.
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("avx") != 0;
  return has;
}
[[gnu::target("avx,f16c")]] int64_t round_eights(const float* from, int64_t count, uint16_t* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
[[gnu::target("avx,f16c")]] int64_t widen_eights(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  return i;
}
#else
// Here compilers make vectors of the loops below by themselves.
bool has_f16c() { return false; }
int64_t round_eights(const float*, int64_t, uint16_t*) { return 0; }
int64_t widen_eights(const uint16_t*, int64_t, float*) { return 0; }
#endif

uint16_t bf16_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace

void round_row(const float* from, int64_t count, int32_t dtype, uint16_t* to) {
  if (dtype == FULMEN_BF16) {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16_of(from[i]);
    return;
  }
  for (int64_t i = has_f16c() ? round_eights(from, count, to) : 0; i < count; ++i)
    to[i] = std::bit_cast<uint16_t>(static_cast<Half>(from[i]));
}

void widen_row(const uint16_t* from, int64_t count, int32_t dtype, float* to) {
  if (dtype == FULMEN_BF16) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
    return;
  }
  for (int64_t i = has_f16c() ? widen_eights(from, count, to) : 0; i < count; ++i)
    to[i] = static_cast<float>(std::bit_cast<Half>(from[i]));
}

}  // namespace fulmen_integrations
