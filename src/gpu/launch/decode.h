// What the families for few queries share: launch/decode.cpp, launch/decode_tma.cpp.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Query rows of a KV head: its query heads are packed into tiles.
inline int64_t packed_rows(const Problem& p) { return p.group_size() * p.seqlen_q; }

// decode.h's launches with so many splits, and decode_combine.h where there are several.
LaunchPlan decode_plan(const Problem& p, const Target& target, const Chip& chip, int num_splits);

}  // namespace fulmen::gpu
