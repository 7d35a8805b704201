// Tiles of K and V in flight from memory to LDS, and from there into operands. The kernel's loop:
//   fetch<clamped>(first key, buffer)   starts the next tile's loads; clamped: keys past the end
//                                       are possible
//   publish(buffer)            the tile is in LDS after the barrier that follows
// Tiles begin at attended keys, or before them where they lie in pages or elements are dropped.
// Keys past the end repeat the last one: their scores are masked, and a probability of 0 is
// multiplied by a value that the tile has anyway. Keys before the first repeat the first, or are 0.
// What the keep-mask hides from every row becomes 0, as it may be NaN.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/kept_keys.h"
#include "tile/register_pressure.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"
#include "tile/stage_scales.h"
#include "tile/stored_pieces.h"
#include "tile/values.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/stage.h"
#else
#include "tile/amd/stage.h"
#endif
