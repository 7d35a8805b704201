// A whole tensor of a short sequence in LDS, as rows and, on AMD, transposed: the copy from memory,
// and operands from there.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/columns.h"

namespace fulmen::kernels {

// Addresses that follow from a lane's number need not stay in registers from board to board.
FULMEN_DEVICE unsigned own_lane() { return static_cast<unsigned>(recompute(lane_id())); }

}  // namespace fulmen::kernels

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/short_tile.h"
#else
#include "tile/amd/short_tile.h"
#endif
