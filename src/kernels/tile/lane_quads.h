// Rows of the matrix instructions' tiles in pieces of 8 dims, as memory likes them: where a quad of lanes shares a row (NVIDIA).
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

constexpr int kQuadRun = 8;  // dims that a lane of a quad gets

// From each lane of a quad to each: what lane c has as pair n goes to lane n, as pair c.
FULMEN_DEVICE void transpose_quads(float (&pair)[4][2]) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool upper = (lane_id() & mask) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & mask) != 0) continue;
      const int high = low | mask;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float received = shuffle_xor(upper ? pair[low][n] : pair[high][n], mask);
        pair[low][n] = upper ? received : pair[low][n];
        pair[high][n] = upper ? pair[high][n] : received;
      }
    }
  }
}

// The same with a word in place of a pair.
FULMEN_DEVICE void transpose_quads(Words<4>& words) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool upper = (lane_id() & mask) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & mask) != 0) continue;
      const int high = low | mask;
      const unsigned received = shuffle_xor(upper ? words.word[low] : words.word[high], mask);
      words.word[low] = upper ? received : words.word[low];
      words.word[high] = upper ? words.word[high] : received;
    }
  }
}

// Of two tiles of 16 dims side by side, the row `slot` of the lane's quad: the lane gets dims [8 c, 8 c + 8), c its place in the
// quad.
FULMEN_DEVICE void quad_run(const float (&first)[kElements], const float (&second)[kElements], int slot, float factor,
                            float (&run)[kQuadRun]) {
  float pair[4][2];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (row_slot(e) != slot) continue;
    pair[e / 4][e % 2] = first[e] * factor;
    pair[2 + e / 4][e % 2] = second[e] * factor;
  }
  transpose_quads(pair);
#pragma unroll
  for (int n = 0; n < kQuadRun; ++n) run[n] = pair[n / 2][n % 2];
}

}  // namespace fulmen::kernels
