// What is no instruction of the chip, and flow that leaves the kernel or that this check cannot
// follow.
#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

bool is_no_instruction(std::string_view name) {
  return name.starts_with('.') || name.starts_with('<') || name.starts_with("v_illegal") ||
         name.starts_with("(bad)");
}

}  // namespace

void decoding_findings(const AmdProgram& program, AmdFindings& findings) {
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const AmdInstruction& at = program.code[i];
    if (!program.reached(i)) continue;
    if (is_no_instruction(at.name)) {
      findings.add(i, "is no instruction of this chip");
    } else if (begins_with_any(at.name, {"s_swappc", "s_setpc", "s_call", "s_rfe",
                                         "s_cbranch_i_fork", "s_cbranch_g_fork"})) {
      findings.add(i, "calls or jumps where this check cannot follow: kernels are one function");
    } else if (at.branches && at.target == AmdInstruction::kNowhere) {
      findings.add(i, "jumps out of the kernel");
    } else if (at.falls_through && i + 1 == program.code.size()) {
      findings.add(i, "is the kernel's last instruction, and does not end it");
    }
  }
}

}  // namespace fulmen::gpu
