// How the warpgroups of a kernel share a multiprocessor's registers (setmaxnreg): the same formula for the host, which chooses
// tiles by it, and for the kernels.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// What a producer keeps where shares are large. Its loop of copies by cp.async has more addresses than one of TMA loads.
constexpr int kCopyingProducer = 40, kTmaProducer = 24;

// Registers of a lane: at the start, of 65,536 for min_workgroups of warpgroups + 1 with 128 lanes each; then the producer's, and
// those of the warpgroups that multiply. In multiples of 8.
struct RegisterShares {
  int start, producer, consumer;

  FULMEN_ALGORITHM static RegisterShares of(int warpgroups, int min_workgroups, int large_producer) {
    const int start = 512 / min_workgroups / (warpgroups + 1) / 8 * 8;
    const int producer = start > 128 ? large_producer : 32;
    return {start, producer, (start * (warpgroups + 1) - producer) / warpgroups / 8 * 8};
  }
};

}  // namespace fulmen::kernels
