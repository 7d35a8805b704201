// AMD: the whole workgroup meets.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

template <int kWaves>
FULMEN_DEVICE void group_barrier(int /*group*/, int /*wave*/) {
  barrier();
}

}  // namespace fulmen::kernels
