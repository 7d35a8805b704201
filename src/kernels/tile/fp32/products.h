// Tiles of fp32 in LDS, and their products by parts: FloatStage, FloatRows, multiply_keys(),
// multiply_values().
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/fp32/tiles.h"
#include "tile/kept_keys.h"
#include "tile/softmax.h"
#include "tile/sources.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/fp32/nvidia.h"
#else
#include "tile/fp32/amd.h"
#endif
