// NVIDIA: no such hardware. Nothing is loaded through this buffer, as kBuffered is false.
#pragma once

#include "core/sequence.h"

namespace fulmen::kernels {

struct RowBuffer {
  FULMEN_DEVICE RowBuffer(const void* /*base*/, unsigned /*bytes*/) {}
  template <class T>
  FULMEN_DEVICE T load(unsigned offset, unsigned fixed) const;
};
constexpr bool kBuffered = false;

}  // namespace fulmen::kernels
