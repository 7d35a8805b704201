// Which lanes are on before each instruction of an AMD kernel.
#pragma once

#include <vector>

#include "gpu/compile/amd_rules/flow.h"
#include "gpu/compile/report/amd_disassembly.h"
#include "gpu/compile/report/exec_masks.h"

namespace fulmen::gpu {

// Masks of 64 lanes are in pairs of registers; code for waves of 32 lanes names the lower half of
// EXEC alone.
bool has_64_lanes(const std::vector<AmdInstruction>& code);

constexpr int kNeverReached = -1000000;

// EXEC before each instruction, as a number of ExecMasks; kNeverReached where no way leads. It
// starts with all lanes on (workgroups are whole waves). A mask is known as "all lanes" or as one
// side of a branch inside another mask, so that the end of an if or an else is known to turn the
// lanes on again; whatever else is computed is unknown, and unknown means that lanes may be off.
std::vector<int> exec_before_instructions(const std::vector<AmdInstruction>& code,
                                          const AmdFlow& flow);

}  // namespace fulmen::gpu
