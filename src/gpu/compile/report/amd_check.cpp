#include "gpu/compile/report/amd_check.h"

#include "gpu/compile/amd_rules/path_facts.h"
#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/amd_descriptor.h"
#include "gpu/compile/report/amd_metadata.h"

namespace fulmen::gpu {

namespace {

// Compilers end a block that no way should leave with a branch on EXEC being 0. With all lanes on
// it is not taken.
std::vector<AmdInstruction> without_dead_branches(std::vector<AmdInstruction> code) {
  const std::vector<int> exec = exec_before_instructions(code, AmdFlow(code));
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (exec[i] != ExecMasks::kAllLanes) continue;
    if (code[i].name == "s_cbranch_execz") code[i].branches = false;
    if (code[i].name == "s_cbranch_execnz") code[i].falls_through = false;
  }
  return code;
}

// EXEC by two flows, either of which is right: `flow` leaves out ways that cannot be taken,
// `blocks` has one copy of each block, and so has simpler loops.
std::vector<int> exec_by_both(const std::vector<AmdInstruction>& code, const AmdFlow& flow,
                              const AmdFlow& blocks) {
  std::vector<int> exec = exec_before_instructions(code, flow);
  const std::vector<int> more = exec_before_instructions(code, blocks);
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (exec[i] != kNeverReached && more[i] == ExecMasks::kAllLanes) exec[i] = more[i];
  }
  return exec;
}

std::vector<AmdAccess> accesses_of(const std::vector<AmdInstruction>& code) {
  std::vector<AmdAccess> access;
  access.reserve(code.size());
  for (const AmdInstruction& instruction : code) access.push_back(access_of(instruction));
  return access;
}

}  // namespace

AmdProgram::AmdProgram(std::string_view disassembly, AmdKernelFacts kernel)
    : facts(kernel),
      code(without_dead_branches(read_amd_disassembly(disassembly))),
      access(accesses_of(code)),
      slots(code, access),
      blocks(code),
      flow(flow_by_facts(code, access, blocks)),
      exec(exec_by_both(code, flow, blocks)) {}

AmdKernelFacts amd_kernel_facts(std::span<const std::byte> code_object, std::string_view arch) {
  AmdKernelFacts facts{.arch = arch};
  const AmdInitialRegisters initial = read_amd_initial_registers(code_object, arch);
  facts.initial_scalars = initial.scalars;
  facts.initial_vectors = initial.vectors;
  const Result<std::vector<AmdKernelMetadata>> kernels = read_amd_metadata(code_object);
  if (kernels.ok() && !kernels.value().empty()) facts.lds_bytes = kernels.value().front().lds_bytes;
  return facts;
}

std::vector<std::string> amd_findings(std::string_view disassembly, const AmdKernelFacts& facts) {
  const AmdProgram program(disassembly, facts);
  AmdFindings findings(program);
  for (const auto rule : {decoding_findings, cross_lane_findings, barrier_findings,
                          unwritten_register_findings, wait_findings, lds_findings}) {
    rule(program, findings);
  }
  return findings.take();
}

}  // namespace fulmen::gpu
