// Softmax and O += P V of a wave's rows over one tile of keys. The vendors differ in the order, by
// the registers that they have:
//   attend<kMasked>(map, wave_row, tile, score, rows)
#pragma once

#include "tile/drop.h"
#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/wave_step.h"
#else
#include "tile/amd/wave_step.h"
#endif
