// Reductions over 2^n neighbouring lanes, each of which gets the result.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

template <int kLanes>
FULMEN_DEVICE float max_of_neighbours(float x) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) x = larger(x, shuffle_xor(x, mask));
  return x;
}
template <int kLanes>
FULMEN_DEVICE float sum_of_neighbours(float x) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

}  // namespace fulmen::kernels
