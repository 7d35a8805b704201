// What a compiler did to an AMD kernel, read from its machine code. The emulator runs the kernel's
// source and cannot see it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

// Instructions that read a register of another lane where lanes of the wave may be off, a sentence
// each. A lane that is off is read as 0, or not at all. Instructions that fetch inactive lanes
// (`op_sel:[1,...]` of v_permlane, `fi:1` of DPP) and v_readlane read any lane and are no findings.
//
// EXEC is followed along all ways through the kernel. It starts with all lanes on (workgroups are
// whole waves). A mask is known as "all lanes" or as one side of a branch inside another mask, so
// that the end of an if or an else is known to turn the lanes on again; whatever else is computed is
// unknown, and unknown means that lanes may be off.
//
// disassembly: of llvm-objdump -d. Reads any text.
std::vector<std::string> cross_lane_findings(std::string_view disassembly);

}  // namespace fulmen::gpu
