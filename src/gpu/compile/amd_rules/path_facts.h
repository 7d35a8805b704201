// Ways through an AMD kernel that cannot be taken, because two branches test the same condition.
#pragma once

#include <vector>

#include "gpu/compile/amd_rules/flow.h"
#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

// Compilers keep conditions that are the same for a whole wave in scalar registers, 0 or -1, and
// test them again where ways have met: `s_mov_b32 s4, -1` on one of them,
// `s_and_b32 vcc, exec, s4`, `s_cbranch_vccnz`. They also repeat a comparison whose operands did
// not change. The flow returned has a block for each set of such facts that may hold before it, and
// only the edges that these facts allow. Where that would be too many blocks, it is the flow as it
// was.
AmdFlow flow_by_facts(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access,
                      const AmdFlow& flow);

}  // namespace fulmen::gpu
