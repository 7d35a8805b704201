// What the families for few queries share: launch/decode.cpp, launch/decode_tma.cpp.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Merging splits takes as long as reading so many bytes of keys: a workgroup of a wave a query row, as measured on an H100.
inline int64_t merging_bytes(const Problem& p) {
  constexpr int64_t kRowBytes = 6 << 10;
  return p.batch * p.num_heads * p.seqlen_q * kRowBytes;
}

// decode.h's launches with so many splits, and decode_combine.h where there are several.
LaunchPlan decode_plan(const Problem& p, const Target& target, const Chip& chip, int num_splits);

}  // namespace fulmen::gpu
