#include "support/emulated_tiles.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/float_formats.h"

namespace fulmen::testing {
namespace {

thread_local EmulatedTiles::State tiles;

float flush(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

float element(uint32_t word, int half, bool fp16) {
  if (fp16) return reference::from_fp16(static_cast<uint16_t>(word >> 16 * half));
  const uint32_t bits = half == 0 ? word << 16U : word & 0xFFFF0000U;
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return flush(x);
}

// x y + sum, rounded once. Where the compiler makes a version for processors with FMA, a loop of
// these becomes vectors. Elsewhere: the product is exact by itself unless it is denormal, and
// std::fma is slow. A sanitizer's runtime is not there yet when a version is chosen.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FULMEN_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
float add_product(float sum, float x, float y) { return __builtin_fmaf(x, y, sum); }
#else
#define FULMEN_CLONES
float add_product(float sum, float x, float y) {
  const float product = x * y;
  return std::fabs(product) >= 0x1p-126F ? sum + product : std::fma(x, y, sum);
}
#endif

// c[i][j] += the products of rows of left and columns of right, a sum for each half.
FULMEN_CLONES void add_products(const float (&left)[2][16][16], const float (&right)[2][16][16],
                                float (&c)[16][16]) {
  for (int i = 0; i < 16; ++i) {
    float sum[2][16] = {};
    for (int w = 0; w < 16; ++w) {
      for (int half = 0; half < 2; ++half) {
        const float x = left[half][i][w];
        for (int j = 0; j < 16; ++j)
          sum[half][j] = flush(add_product(sum[half][j], x, right[half][w][j]));
      }
    }
    for (int j = 0; j < 16; ++j) c[i][j] = flush(flush(c[i][j]) + flush(sum[0][j] + sum[1][j]));
  }
}

}  // namespace

void EmulatedTiles::configure(int upper_rows) { tiles.upper_rows = upper_rows; }
void EmulatedTiles::release() { tiles.upper_rows = 0; }

EmulatedTiles::State& EmulatedTiles::usable() {
  if (tiles.upper_rows == 0) {
    std::fputs("a tile instruction without a tile configuration\n", stderr);
    std::abort();
  }
  return tiles;
}

void EmulatedTiles::dot(Tile& c, const Tile& a, const Tile& b, bool fp16) {
  float left[2][16][16], right[2][16][16];  // elements of the words' halves
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        left[half][i][j] = element(a.word[i][j], half, fp16);
        right[half][i][j] = element(b.word[i][j], half, fp16);
      }
    }
  }
  float sums[16][16];
  std::memcpy(sums, c.word, sizeof sums);
  add_products(left, right, sums);
  std::memcpy(c.word, sums, sizeof sums);
}

void EmulatedTiles::dot_bytes(Tile& c, const Tile& a, const Tile& b) {
  const auto byte = [](uint32_t word, int i) {
    return static_cast<int32_t>(static_cast<int8_t>(word >> 8 * i & 0xFFU));
  };
  for (int i = 0; i < 16; ++i) {
    for (int w = 0; w < 16; ++w) {
      for (int j = 0; j < 16; ++j) {
        int32_t sum = 0;
        for (int e = 0; e < 4; ++e) sum += byte(a.word[i][w], e) * byte(b.word[w][j], e);
        c.word[i][j] += static_cast<uint32_t>(sum);
      }
    }
  }
}

}  // namespace fulmen::testing
