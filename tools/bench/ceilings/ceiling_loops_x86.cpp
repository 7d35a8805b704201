#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <utility>

#include "runtime/platform/system.h"
#include "tools/bench/ceilings/ceiling_loops.h"

namespace fulmen::tools {
namespace {

constexpr int kAccumulators = 16;     // two FMAs a cycle of latency 4 to 6 need 8 to 12
constexpr int kYmmAccumulators = 12;  // there are 16 registers
using Zmm = std::make_index_sequence<kAccumulators>;
using Ymm = std::make_index_sequence<kYmmAccumulators>;

// All accumulators advance by one step; spelled out by the index sequence, so that each is a
// register.
template <std::size_t... I>
__attribute__((target("avx512f"), always_inline)) inline void fma_step(
    __m512 (&acc)[kAccumulators], const __m512& a, std::index_sequence<I...> /*unused*/) {
  ((acc[I] = _mm512_fmadd_ps(a, a, acc[I])), ...);
}

__attribute__((target("avx512f"))) float fma_avx512(int64_t iterations) {
  __m512 acc[kAccumulators];
  for (auto& x : acc) x = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(static_cast<float>(iterations) * 1e-9F);
  for (int64_t i = 0; i < iterations; ++i) fma_step(acc, a, Zmm{});
  float sum = 0;
  for (const auto& x : acc) sum += _mm512_cvtss_f32(x);
  return sum;
}

template <std::size_t... I>
__attribute__((target("avx2,fma"), always_inline)) inline void fma_step(
    __m256 (&acc)[kYmmAccumulators], const __m256& a, std::index_sequence<I...> /*unused*/) {
  ((acc[I] = _mm256_fmadd_ps(a, a, acc[I])), ...);
}

__attribute__((target("avx2,fma"))) float fma_avx2(int64_t iterations) {
  __m256 acc[kYmmAccumulators];
  for (auto& x : acc) x = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(static_cast<float>(iterations) * 1e-9F);
  for (int64_t i = 0; i < iterations; ++i) fma_step(acc, a, Ymm{});
  float sum = 0;
  for (const auto& x : acc) sum += _mm256_cvtss_f32(x);
  return sum;
}

template <std::size_t... I>
__attribute__((target("avx512f,avx512bw,avx512bf16"), always_inline)) inline void dot_step(
    __m512 (&acc)[kAccumulators], const __m512i& a, std::index_sequence<I...> /*unused*/) {
  ((acc[I] = _mm512_dpbf16_ps(acc[I], (__m512bh)a, (__m512bh)a)), ...);
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) float dot_bf16(int64_t iterations) {
  __m512 acc[kAccumulators];
  for (auto& x : acc) x = _mm512_setzero_ps();
  const __m512i a = _mm512_set1_epi16(static_cast<short>(0x3000 | (iterations & 1)));
  for (int64_t i = 0; i < iterations; ++i) dot_step(acc, a, Zmm{});
  float sum = 0;
  for (const auto& x : acc) sum += _mm512_cvtss_f32(x);
  return sum;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Products of 2 x 2 tiles as in a matrix product whose operands lie in L1: each step loads four
// tiles of random numbers for four products, whose independent sums cover the latency of 52 cycles
// at 16 cycles each. Processors slow down by what these instructions switch: on zeros, or on tiles
// that stay, this reads up to 1.6 times as much, which no product of numbers reaches.
__attribute__((target("amx-tile,amx-bf16"))) float tiles_bf16(int64_t iterations) {
  constexpr int kTileWords = 256, kSteps = 4;  // a tile has 16 rows of 64 bytes
  alignas(64) uint32_t operands[kSteps][4][kTileWords];
  uint32_t random = 1;
  for (auto& step : operands) {
    for (auto& tile : step) {
      for (uint32_t& word : tile) {  // pairs of bf16 of either sign in [1, 2)
        random = random * 1664525 + 1013904223;
        word = (random & 0x807F807FU) | 0x3F803F80U;
      }
    }
  }
  const TileConfig config;
  _tile_loadconfig(&config);
  for (int64_t i = 0; i < iterations; i += kSteps) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (const auto& step : operands) {
      _tile_loadd(4, step[0], 64);
      _tile_loadd(6, step[1], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, step[2], 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, step[3], 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[kTileWords];
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0];
}

// Tiles must be there, enabled by the system, and asked for by the process.
bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && platform::request_amx();
}

// kStreams places are read at a time, kAhead bytes are asked for in advance (0: left to the
// hardware).
template <int kStreams, int kAhead>
__attribute__((target("avx512f"))) uint64_t read_avx512(const std::byte* data, std::size_t bytes) {
  const std::size_t part = bytes / kStreams;
  __m512i acc0 = _mm512_setzero_si512(), acc1 = acc0, acc2 = acc0, acc3 = acc0;
  for (std::size_t i = 0; i < part; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* at = data + static_cast<std::size_t>(s) * part + i;
      if constexpr (kAhead > 0) {
        for (int line = 0; line < 256; line += 64) __builtin_prefetch(at + kAhead + line, 0, 3);
      }
      acc0 = _mm512_or_si512(acc0, _mm512_load_si512(at));
      acc1 = _mm512_or_si512(acc1, _mm512_load_si512(at + 64));
      acc2 = _mm512_or_si512(acc2, _mm512_load_si512(at + 128));
      acc3 = _mm512_or_si512(acc3, _mm512_load_si512(at + 192));
    }
  }
  alignas(64) uint64_t words[8];  // _mm512_reduce_or_epi64 warns of g++ 12's own header
  _mm512_store_si512(words,
                     _mm512_or_si512(_mm512_or_si512(acc0, acc1), _mm512_or_si512(acc2, acc3)));
  return words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7];
}

template <int kStreams, int kAhead>
__attribute__((target("avx2"))) uint64_t read_avx2(const std::byte* data, std::size_t bytes) {
  const std::size_t part = bytes / kStreams;
  __m256i acc0 = _mm256_setzero_si256(), acc1 = acc0, acc2 = acc0, acc3 = acc0;
  for (std::size_t i = 0; i < part; i += 128) {
    for (int s = 0; s < kStreams; ++s) {
      const auto* at =
          reinterpret_cast<const __m256i*>(data + static_cast<std::size_t>(s) * part + i);
      if constexpr (kAhead > 0) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(at) + kAhead, 0, 3);
        __builtin_prefetch(reinterpret_cast<const std::byte*>(at) + kAhead + 64, 0, 3);
      }
      acc0 = _mm256_or_si256(acc0, _mm256_load_si256(at));
      acc1 = _mm256_or_si256(acc1, _mm256_load_si256(at + 1));
      acc2 = _mm256_or_si256(acc2, _mm256_load_si256(at + 2));
      acc3 = _mm256_or_si256(acc3, _mm256_load_si256(at + 3));
    }
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(acc0, acc1), _mm256_or_si256(acc2, acc3));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) | _mm256_extract_epi64(all, 1) |
                               _mm256_extract_epi64(all, 2) | _mm256_extract_epi64(all, 3));
}

}  // namespace

std::vector<ComputeLoop> fma_loops() {
  std::vector<ComputeLoop> loops;
  if (__builtin_cpu_supports("avx512f"))
    loops.push_back({"AVX-512", kAccumulators * 16 * 2.0, fma_avx512});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    loops.push_back({"AVX2", kYmmAccumulators * 8 * 2.0, fma_avx2});
  }
  return loops;
}

std::vector<ComputeLoop> bf16_dot_loops() {
  if (!__builtin_cpu_supports("avx512bf16")) return {};
  return {{"AVX-512 BF16", kAccumulators * 32 * 2.0, dot_bf16}};
}

std::vector<ComputeLoop> amx_bf16_loops() {
  if (!has_amx_bf16()) return {};
  return {{"AMX", 4 * 16 * 16 * 32 * 2.0, tiles_bf16}};
}

std::vector<ReadLoop> read_loops() {
  if (__builtin_cpu_supports("avx512f")) {
    return {{"AVX-512", read_avx512<1, 0>},
            {"AVX-512, prefetch 1 KiB", read_avx512<1, 1024>},
            {"AVX-512, prefetch 4 KiB", read_avx512<1, 4096>},
            {"AVX-512, 4 streams", read_avx512<4, 0>},
            {"AVX-512, 4 streams, prefetch 1 KiB", read_avx512<4, 1024>},
            {"AVX-512, 4 streams, prefetch 4 KiB", read_avx512<4, 4096>}};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {{"AVX2", read_avx2<1, 0>},
            {"AVX2, prefetch 1 KiB", read_avx2<1, 1024>},
            {"AVX2, 4 streams", read_avx2<4, 0>},
            {"AVX2, 4 streams, prefetch 1 KiB", read_avx2<4, 1024>}};
  }
  return {};
}

}  // namespace fulmen::tools
#endif
