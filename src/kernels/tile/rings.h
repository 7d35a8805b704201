// Rings of buffers in LDS, each with mbarriers that say when it is full and when it is empty.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

// The buffer that is next, and the parity of its mbarriers' phase.
template <int kCount>
struct Ring {
  int buffer = 0, parity = 0;
  FULMEN_DEVICE void advance() {
    buffer = buffer + 1 < kCount ? buffer + 1 : 0;
    parity ^= buffer == 0 ? 1 : 0;
  }
};

}  // namespace fulmen::kernels
