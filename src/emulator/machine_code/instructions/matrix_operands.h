// What matrix instructions ask of their operands.
#pragma once

#include "emulator/machine_code/instructions/lanes.h"

namespace fulmen::gpu::isa {

// Fails unless lanes l and l + 16 hold the same, as RDNA3 wants A and B.
void check_halves_equal(const Wave& w, const Operand& o);

}  // namespace fulmen::gpu::isa
