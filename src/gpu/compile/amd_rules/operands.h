// Which registers an AMD instruction reads and writes.
#pragma once

#include <string_view>
#include <vector>

#include "gpu/compile/amd_rules/registers.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

// Takes the next operand of "s[0:1], vcc, v0 op_sel:[1,0]": up to a comma outside of brackets.
std::string_view take_operand(std::string_view& operands);

// Implicit registers included: VCC, EXEC, SCC. Of instructions that keep a part of what they write
// (half a register, lanes that are off) that register is no read.
struct AmdAccess {
  std::vector<RegisterRange> reads, writes;
  // Of a dual instruction ("a :: b") how many of them are its first half's; else all.
  std::size_t first_reads = 0, first_writes = 0;
};
AmdAccess access_of(const AmdInstruction& instruction);

// Whether an instruction of memory or LDS gives a register back. False for stores and atomics without return.
bool returns_data(const AmdInstruction& instruction);

}  // namespace fulmen::gpu
