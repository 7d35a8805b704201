// The problems of `fulmen selftest`: always the same ones, with the same inputs.
#pragma once

#include <vector>

#include "tools/verify/grid.h"

namespace fulmen::tools {

// Forward and backward: dtypes, head dims, masks, GQA, dropout, lengths, pages, decoding, boards,
// odd strides. Problem n has inputs of seed n. Small enough for emulated devices.
std::vector<GridCase> selftest_problems();

}  // namespace fulmen::tools
