// How the warpgroups of a kernel share a multiprocessor's registers (setmaxnreg): the same formula
// for the host, which chooses tiles by it, and for the kernels.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// What a warpgroup that only brings tiles keeps where shares are large. By cp.async it has more
// addresses than by the TMA.
constexpr int kCopyingRegisters = 40, kTmaRegisters = 24;

// Registers of a lane: at the start, of 65,536 for min_workgroups of warpgroups + 1 with 128 lanes
// each; then of the warpgroup that brings tiles, and of those that multiply. In multiples of 8.
struct RegisterShares {
  int start, loader, consumer;

  FULMEN_ALGORITHM static RegisterShares of(int warpgroups, int min_workgroups, int large_loader) {
    const int start = 512 / min_workgroups / (warpgroups + 1) / 8 * 8;
    const int loader = start > 128 ? large_loader : 32;
    return {start, loader, (start * (warpgroups + 1) - loader) / warpgroups / 8 * 8};
  }
};

}  // namespace fulmen::kernels
