// Which keys of a tile the keep-mask lets any row attend. What no row attends must not be read as a
// number: it may be NaN.
#pragma once

#include "tile/mask_bits.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// A bit for each of kCount keys, the same in all lanes: each lane looks at one key of every
// kWaveSize.
template <int kCount>
struct KeptKeys {
  unsigned word[(kCount + 31) / 32];

  // keeps(n) returns true if any row attends the tile's key n. All lanes of the wave come here
  // together.
  template <class Keeps>
  FULMEN_DEVICE static KeptKeys of(const Keeps& keeps) {
    KeptKeys kept;
#pragma unroll
    for (int n = 0; n < kCount; n += kWaveSize) {
      const int key = n + lane_id();
      const unsigned long long bits = ballot(key < kCount && keeps(key));
      kept.word[n / 32] = static_cast<unsigned>(bits);
      if (kWaveSize == 64 && n + 32 < kCount)
        kept.word[n / 32 + 1] = static_cast<unsigned>(bits >> 32U);
    }
    return kept;
  }
  // The kept keys, of which the bits are known.
  FULMEN_DEVICE static KeptKeys of(const TileBits& bits) {
    static_assert(kCount == kBlockN);
    KeptKeys kept;
#pragma unroll
    for (int w = 0; w < (kCount + 31) / 32; ++w) kept.word[w] = bits.word[w];
    return kept;
  }
  FULMEN_DEVICE void drop_before(int first) {
#pragma unroll
    for (int w = 0; w < (kCount + 31) / 32; ++w) {
      const int below = first - 32 * w;
      word[w] &= below <= 0 ? ~0U : below >= 32 ? 0U : ~0U << static_cast<unsigned>(below);
    }
  }
  FULMEN_DEVICE void drop_behind(int last) {
#pragma unroll
    for (int w = 0; w < (kCount + 31) / 32; ++w) {
      const int kept = last + 1 - 32 * w;
      word[w] &= kept <= 0 ? 0U : kept >= 32 ? ~0U : ~(~0U << static_cast<unsigned>(kept));
    }
  }
  // Returns `row`, of key number `key`, or 0 if no row attends the key.
  template <bool kUniform = false, int kWords>
  FULMEN_DEVICE Words<kWords> or_zero(int key, const Words<kWords>& row) const {
    return masked<kUniform>(row, 0U - (word_of(key) >> (static_cast<unsigned>(key) % 32) & 1U));
  }

 private:
  // By choices: words at a place that is not known before would lie in memory.
  FULMEN_DEVICE unsigned word_of(int key) const {
    unsigned bits = word[0];
#pragma unroll
    for (int w = 1; w < (kCount + 31) / 32; ++w) bits = key >= 32 * w ? word[w] : bits;
    return bits;
  }
};

}  // namespace fulmen::kernels
