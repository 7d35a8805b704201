#include "amx/emulated_tiles.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace fulmen::testing {
namespace {

thread_local EmulatedTiles::State tiles;

float flush(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

float element(uint32_t word, int half) {
  const uint32_t bits = half == 0 ? word << 16U : word & 0xFFFF0000U;
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return flush(x);
}

}  // namespace

void EmulatedTiles::configure() { tiles.configured = true; }
void EmulatedTiles::release() { tiles.configured = false; }

EmulatedTiles::State& EmulatedTiles::usable() {
  if (!tiles.configured) {
    std::fputs("a tile instruction without a tile configuration\n", stderr);
    std::abort();
  }
  return tiles;
}

void EmulatedTiles::dot(Tile& c, const Tile& a, const Tile& b) {
  for (int i = 0; i < 16; ++i) {
    for (int w = 0; w < 16; ++w) {
      for (int j = 0; j < 16; ++j) {
        float sum = 0;
        std::memcpy(&sum, &c.word[i][j], sizeof sum);
        for (int half = 0; half < 2; ++half) sum = flush(sum + element(a.word[i][w], half) * element(b.word[w][j], half));
        std::memcpy(&c.word[i][j], &sum, sizeof sum);
      }
    }
  }
}

}  // namespace fulmen::testing
