// When launch/prefill.cpp takes its shapes for chess boards; the choice of a family asks, too.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Whether prefill takes a problem in its shapes for boards: where they are faster than
// forward/short.h.
bool prefers_board_shapes(const Target& target, const Problem& problem);

}  // namespace fulmen::gpu
