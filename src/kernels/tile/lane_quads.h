// Rows of the matrix instructions' tiles in pieces of 8 dims, as memory likes them: where a quad of
// lanes shares a row (NVIDIA).
#pragma once

#include "core/matrix.h"

namespace fulmen::kernels {

constexpr int kQuadRun = 8;  // dims that a lane of a quad gets

// From each lane of a quad to each: what lane c has as element n goes to lane n, as element c.
template <class T>
FULMEN_DEVICE void transpose_quads(T (&element)[4]) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool upper = (lane_id() & mask) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & mask) != 0) continue;
      const int high = low | mask;
      const T received = shuffle_xor(upper ? element[low] : element[high], mask);
      element[low] = upper ? received : element[low];
      element[high] = upper ? element[high] : received;
    }
  }
}

// Gathers a row, the `slot` of the lane's quad, of two tiles of 16 dims side by side, times
// `factor`: the lane gets dims [8 c, 8 c + 8), c its place in the quad.
FULMEN_DEVICE void quad_run(const float (&first)[kElements], const float (&second)[kElements],
                            int slot, float factor, float (&run)[kQuadRun]) {
  float parts[2][4];  // even dims, and odd ones
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (row_slot(e) != slot) continue;
    parts[e % 2][e / 4] = first[e] * factor;
    parts[e % 2][2 + e / 4] = second[e] * factor;
  }
  transpose_quads(parts[0]);
  transpose_quads(parts[1]);
#pragma unroll
  for (int n = 0; n < kQuadRun; ++n) run[n] = parts[n % 2][n / 2];
}

}  // namespace fulmen::kernels
