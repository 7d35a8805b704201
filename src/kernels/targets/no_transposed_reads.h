// Targets whose LDS does not transpose while it is read.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

constexpr bool kReadsTransposed = false;
// kReadsTransposed alone.
FULMEN_DEVICE Words<2> lds_load_transposed(int at);

}  // namespace fulmen::kernels
