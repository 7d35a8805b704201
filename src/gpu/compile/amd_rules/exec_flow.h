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
// starts with all lanes on (workgroups are whole waves). A mask is known as "all lanes", as a part
// of another mask, or as the rest of one, so that the end of an if, an else or a loop is known to
// turn lanes on again. Whatever else is computed is unknown: lanes may be off.
std::vector<int> exec_before_instructions(const std::vector<AmdInstruction>& code,
                                          const AmdFlow& flow);

}  // namespace fulmen::gpu
