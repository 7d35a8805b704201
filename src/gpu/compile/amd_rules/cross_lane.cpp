// Instructions that read a register of another lane where lanes of the wave may be off. A lane that
// is off is read as 0, or not at all. Instructions that fetch inactive lanes (`op_sel:[1,...]` of
// v_permlane, `fi:1` of DPP) and v_readlane read any lane and are no findings.
#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

bool reads_lanes_that_are_on(const AmdInstruction& instruction) {
  const std::string_view name = instruction.name;
  if (name.starts_with("v_permlane") && name.find("_swap_") == std::string_view::npos)
    return instruction.operands.find("op_sel:[1,") == std::string_view::npos;
  if (begins_with_any(name, {"ds_bpermute_", "ds_permute_", "ds_swizzle_", "ds_read_b64_tr_"}))
    return true;
  if (name.find("_dpp") == std::string_view::npos && !name.starts_with("v_permlane")) return false;
  return instruction.operands.find("fi:1") == std::string_view::npos;
}

// RDNA's matrix instructions take their operands from all lanes and are defined with all lanes on
// alone. LLVM does not know that they are convergent, and moves one into a branch that only needs
// its result. CDNA's do not look at EXEC.
bool needs_all_lanes(const AmdInstruction& instruction) {
  return begins_with_any(instruction.name, {"v_wmma_", "v_swmmac_"});
}

}  // namespace

void cross_lane_findings(const AmdProgram& program, AmdFindings& findings) {
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    if (!program.reached(i) || program.all_lanes_on(i)) continue;
    if (reads_lanes_that_are_on(program.code[i]))
      findings.add(i, "reads other lanes where these may be off");
    if (needs_all_lanes(program.code[i]))
      findings.add(i, "multiplies matrices where lanes may be off");
  }
}

}  // namespace fulmen::gpu
