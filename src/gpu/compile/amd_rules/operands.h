// Which registers an AMD instruction reads and writes.
#pragma once

#include <string_view>
#include <vector>

#include "gpu/compile/amd_rules/registers.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

// Takes the next operand of "s[0:1], vcc, v0 op_sel:[1,0]": up to a comma outside of brackets.
std::string_view take_operand(std::string_view& operands);

struct FirstOperands {
  explicit FirstOperands(std::string_view operands)
      : first(take_operand(operands)),
        second(take_operand(operands)),
        third(take_operand(operands)) {}
  std::string_view first, second, third;
};

// The registers that an instruction reads and writes, implicit ones included: VCC, EXEC, SCC. A
// written register of which a part is kept (half of it, lanes that are off) is no read.
struct AmdAccess {
  std::vector<RegisterRange> reads, writes;
  // How many reads and writes belong to the first half of a dual instruction ("a :: b"); else all.
  std::size_t first_reads = 0, first_writes = 0;
};
AmdAccess access_of(const AmdInstruction& instruction);

// Whether an instruction loads from memory to LDS, to the place that M0 says.
bool loads_to_lds(const AmdInstruction& instruction);

// Whether an instruction of memory or LDS gives a register back. False for stores and atomics
// without return.
bool returns_data(const AmdInstruction& instruction);

}  // namespace fulmen::gpu
