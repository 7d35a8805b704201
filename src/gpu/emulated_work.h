// count_emulated_work()'s place.
#pragma once

#include "fulmen/emulated_work.h"

namespace fulmen::gpu {

// Null: nothing is counted.
EmulatedWork* counted_work() noexcept;

}  // namespace fulmen::gpu
