// AMD: buffer loads answer 0 beyond the end. Scattered rows (pages) have no common end.
#pragma once

#include "core/sequence.h"

namespace fulmen::kernels {

using RowBuffer = Buffer;
constexpr bool kBuffered = kWholeRows && !kScattered;

}  // namespace fulmen::kernels
