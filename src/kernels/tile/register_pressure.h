// Feature combinations that would spill on the fast path; `fulmen compile --pairs` finds them.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// AMD: addresses of rows are 64-bit, in vector registers, which adds register pressure.
constexpr bool kFarRows = kAnyAlignment && !kWholeRows;

// Arguments are reloaded for each tile, and each tile is scheduled by itself, to lower the register
// pressure.
constexpr bool kManyArguments =
    kKeepMask || (kBias && kAlibi) || (kAnyAlignment && kAlibi && (kFarRows || kDropout));

// A lane loads values from memory by 2 dims of a key, not 4: on gfx11 it has all 16 keys, and 4
// dims of each would spill.
constexpr bool kFewDims = kDirectKeys == 16 && kFarRows && kHeadDimV > 96 &&
                          (kAlibi || kBand || kHeadDim > 128);

}  // namespace fulmen::kernels
