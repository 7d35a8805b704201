#if !defined(__x86_64__)
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "tools/bench/ceilings/ceiling_loops.h"

namespace fulmen::tools {
namespace {

constexpr int kAccumulators = 16;

#if defined(__aarch64__)
float fma_neon(int64_t iterations) {
  float32x4_t acc[kAccumulators];
  for (auto& x : acc) x = vdupq_n_f32(0.0F);
  const float32x4_t a = vdupq_n_f32(static_cast<float>(iterations) * 1e-9F);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (auto& x : acc) x = vfmaq_f32(x, a, a);
  }
  float sum = 0;
  for (const auto& x : acc) sum += vgetq_lane_f32(x, 0);
  return sum;
}
#else
float fma_scalar(int64_t iterations) {
  float acc[kAccumulators] = {};
  const float a = static_cast<float>(iterations) * 1e-9F;
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& x : acc) x += x * a;
  }
  float sum = 0;
  for (const float x : acc) sum += x;
  return sum;
}
#endif

uint64_t read_words(const std::byte* data, std::size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t acc[8] = {};
  for (std::size_t i = 0; i < bytes / 8; i += 8) {
    for (int j = 0; j < 8; ++j) acc[j] |= words[i + j];
  }
  uint64_t all = 0;
  for (const uint64_t x : acc) all |= x;
  return all;
}

}  // namespace

std::vector<ComputeLoop> fma_loops() {
#if defined(__aarch64__)
  return {{"NEON", kAccumulators * 4 * 2.0, fma_neon}};
#else
  return {{"scalar", kAccumulators * 2.0, fma_scalar}};
#endif
}
std::vector<ComputeLoop> bf16_dot_loops() { return {}; }
std::vector<ComputeLoop> amx_bf16_loops() { return {}; }
std::vector<ReadLoop> read_loops() { return {{"64-bit words", read_words}}; }

}  // namespace fulmen::tools
#endif
