// The rules that machine code of AMD kernels is held to, a file each.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/compile/amd_rules/exec_flow.h"
#include "gpu/compile/amd_rules/flow.h"
#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/amd_rules/spill_slots.h"
#include "gpu/compile/report/amd_check.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

struct AmdProgram {
  AmdProgram(std::string_view disassembly, AmdKernelFacts kernel);

  bool reached(std::size_t i) const { return exec[i] != kNeverReached; }
  bool all_lanes_on(std::size_t i) const { return exec[i] == ExecMasks::kAllLanes; }
  bool is(std::string_view family) const { return facts.arch.starts_with(family); }

  AmdKernelFacts facts;
  std::vector<AmdInstruction> code;
  std::vector<AmdAccess> access;  // of each instruction
  SpillSlots slots;
  AmdFlow blocks;         // as they are in the code
  AmdFlow flow;           // the ways that can be taken: a block may be there several times
  std::vector<int> exec;  // before each instruction
};

class AmdFindings {
 public:
  explicit AmdFindings(const AmdProgram& program) : program_(program) {}
  // "<name> <operands> at address 0x1010 <what>".
  void add(std::size_t i, std::string_view what) {
    if (!told_.emplace(i, what).second) return;  // the same block again
    const AmdInstruction& at = program_.code[i];
    const std::string_view space = at.operands.empty() ? "" : " ";
    sentences_.push_back(
        fmt::format("{}{}{} at address {:#x} {}", at.name, space, at.operands, at.address, what));
  }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  const AmdProgram& program_;
  std::set<std::pair<std::size_t, std::string>> told_;
  std::vector<std::string> sentences_;
};

// Cross-lane reads where lanes may be off.
void cross_lane_findings(const AmdProgram& program, AmdFindings& findings);
// Barriers that not all lanes, or not all waves of a workgroup, come to.
void barrier_findings(const AmdProgram& program, AmdFindings& findings);
// Registers that are read where no way there has written them.
void unwritten_register_findings(const AmdProgram& program, AmdFindings& findings);
// Results of memory, LDS and scalar loads that are used or overwritten before they were waited for.
void wait_findings(const AmdProgram& program, AmdFindings& findings);
// LDS outside of what the kernel asks for.
void lds_findings(const AmdProgram& program, AmdFindings& findings);
// What is no instruction of the chip, and flow that leaves the kernel.
void decoding_findings(const AmdProgram& program, AmdFindings& findings);

}  // namespace fulmen::gpu
