// NVIDIA: pairs of waves meet at two named barriers, at each of which one of them waits for the
// other. Larger groups take the workgroup's barrier: all of its waves go over the same tiles, so
// they come to it equally often.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

template <int kWaves>
FULMEN_DEVICE void group_barrier(int group, int wave) {
  if constexpr (kWaves == 2) {
    named_barrier_arrive(1 + 2 * group + wave);
    named_barrier_sync(2 + 2 * group - wave);
  } else {
    barrier();
  }
}

}  // namespace fulmen::kernels
