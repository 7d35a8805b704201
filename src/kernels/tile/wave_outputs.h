// Outputs of a wave's rows to memory: straight from registers, or through LDS (kStoresThroughLds).
#pragma once

#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/wave_outputs.h"
#else
#include "tile/amd/wave_outputs.h"
#endif
