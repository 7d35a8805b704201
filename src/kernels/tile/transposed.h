// Tiles of 16 x 16 probabilities, or their gradients, through LDS: from lanes that own rows
// (queries) to an operand whose rows are the columns (keys), for products that sum over queries.
#pragma once

#include "core/matrix.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/transposed.h"
#else
#include "tile/amd/transposed.h"
#endif
