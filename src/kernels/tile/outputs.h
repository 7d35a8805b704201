// Tiles of outputs from a wave's registers to rows of memory.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "tile/rows.h"
#include "tile/short_tile.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/outputs.h"
#else
#include "tile/amd/outputs.h"
#endif
