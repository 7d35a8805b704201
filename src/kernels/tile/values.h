// Operands of the second product from LDS: 16 keys and 16 dims of a tile of values.
#pragma once

#include "algorithm/transposed_rows.h"
#include "core/config.h"
#include "core/matrix.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/values.h"
#else
#include "tile/amd/values.h"
#endif
