// NVIDIA: the compiler reads operands ahead. Nothing of forward/parts/prefill_ahead.h is called.
#pragma once

#include "forward/parts/prefill_step.h"
#include "tile/order.h"

namespace fulmen::kernels {

constexpr bool kReadsAhead = false;
FULMEN_DEVICE void over_tiles_ahead(const PrefillTask& task, Stage& stage, const TileOrder& order,
                                    WaveRows& rows);

}  // namespace fulmen::kernels
