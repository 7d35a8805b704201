// AMD: a lane's outputs are neighbours and go to memory from its registers.
#pragma once

#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

namespace fulmen::kernels {

constexpr bool kStoresThroughLds = false;
FULMEN_DEVICE void leave_row(const OutputFragment& /*out*/, int /*t*/, int /*slot*/, int /*row*/,
                             float /*factor*/) {}
template <int kRows>
FULMEN_DEVICE void store_rows(const ForwardArguments& /*a*/, const RowMap& /*map*/, int /*at*/,
                              Int64 /*row*/) {}

}  // namespace fulmen::kernels
