// Features beside which registers do not suffice for what is quickest: `fulmen compile --pairs` finds them.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// AMD: rows whose addresses have 64 bits, in vector registers.
constexpr bool kFarRows = kAnyAlignment && !kWholeRows;

// Arguments are read anew for each tile, which is scheduled by itself.
constexpr bool kManyArguments = kKeepMask || (kBias && kAlibi) || (kAnyAlignment && kAlibi && (kFarRows || kDropout));

// Values straight from memory by 2 dims of a key in place of 4: gfx11's lanes have all keys.
constexpr bool kFewDims = kDirectKeys == 16 && kFarRows && kHeadDimV > 96 && (kAlibi || kBand || kHeadDim > 128);

}  // namespace fulmen::kernels
