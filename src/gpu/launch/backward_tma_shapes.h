// Which problems fill backward_tma's persistent workgroups.
#pragma once

#include "fulmen/problem.h"
#include "gpu/launch/backward_tma_tiles.h"

namespace fulmen::gpu {

// Returns true if blocks of keys fill a chip and would not wait for each other for long.
bool fills_backward_tma(const BackwardTmaTiles& tiles, const Problem& problem);

}  // namespace fulmen::gpu
