// Chips whose matrix instructions multiply no codes of E4M3: names that nothing calls.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

template <int kCount, int kWords>
FULMEN_DEVICE void multiply_e4m3(float (&d)[kCount], const Words<kWords>& a,
                                 const Words<kWords>& b);
constexpr int kCodeDepth = 16;
FULMEN_DEVICE constexpr int code_key(int position) { return position; }

}  // namespace fulmen::kernels
