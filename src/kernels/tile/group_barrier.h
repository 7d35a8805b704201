// group_barrier<kWaves>(group, wave): a group of kWaves neighbouring waves meets, and what they
// wrote to LDS is there. wave: the wave's place in the group. All waves of the workgroup call it.
#pragma once

#include "core/config.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/group_barrier.h"
#else
#include "tile/amd/group_barrier.h"
#endif
