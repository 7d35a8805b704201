// Barriers that not all lanes, or not all waves of a workgroup, come to: a wave that waits at one alone waits
// for ever, or meets another barrier's waves.
//
// Waves differ in what comes from the work-item's number (v0) and from the hardware's wave number. All that is
// computed from it differs, what is loaded from there, and what is written where only some waves or lanes come.
// A branch on such a value may not have a barrier before its ways meet again.
#include <optional>

#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

bool is_barrier(std::string_view name) { return name.starts_with("s_barrier"); }

class Differences {
 public:
  explicit Differences(const AmdProgram& program) : program_(program), branch_of_(program.code.size()) {}

  // Finds the branches on which waves differ until there are no more: what they skip differs, too.
  void find() {
    for (bool more = true; more;) {
      more = false;
      const auto step = [&](RegisterSet& differs, std::size_t i) { follow(i, differs); };
      const auto before = states_before_blocks(
          program_.flow, at_start(), step, [](RegisterSet&, const AmdEdge&) {},
          [](RegisterSet& differs, const RegisterSet& other) {
            const RegisterSet either = differs | other;
            const bool changed = either != differs;
            differs = either;
            return changed;
          });
      visit_instructions(program_.flow, before, [&](RegisterSet& differs, std::size_t i) {
        const AmdInstruction& at = program_.code[i];
        if (at.branches && at.falls_through && reads_any(i, differs)) more = mark(i) || more;
        follow(i, differs);
      });
    }
  }
  // The branch that keeps some waves from an instruction.
  const std::optional<std::size_t>& branch_before(std::size_t i) const { return branch_of_[i]; }

 private:
  static RegisterSet at_start() {
    RegisterSet differs;
    // Work-item numbers; gfx12 has the wave's in ttmp8.
    RegisterRange{kVectors, 3}.assign(differs, true);
    RegisterRange{kFirstTrap + 8, 1}.assign(differs, true);
    return differs;
  }
  bool reads_any(std::size_t i, const RegisterSet& differs) const {
    const AmdInstruction& at = program_.code[i];
    if (program_.slots.is_load(i)) return differs[static_cast<std::size_t>(program_.slots.of(i))];
    // EXEC has all lanes of every wave, or differs.
    if (at.name.starts_with("s_cbranch_exec") && !program_.all_lanes_on(i)) return true;
    for (const RegisterRange& range : program_.access[i].reads) {
      if (range.first == kExecLow ? !program_.all_lanes_on(i) : range.any_in(differs)) return true;
    }
    return begins_with_any(at.name, {"s_getreg", "v_mbcnt"});
  }
  void follow(std::size_t i, RegisterSet& differs) const {
    const SpillSlots& slots = program_.slots;
    // A spilled scalar goes its way whatever lanes are on.
    const bool some_lanes = !program_.all_lanes_on(i) && program_.code[i].name.starts_with("v_") && slots.of(i) < 0;
    const bool value = branch_of_[i].has_value() || some_lanes || reads_any(i, differs);
    if (slots.is_store(i)) differs[static_cast<std::size_t>(slots.of(i))] = value;
    const bool keeps_lanes = program_.code[i].name.starts_with("v_writelane");
    for (const RegisterRange& range : program_.access[i].writes) {
      if (keeps_lanes && !value) continue;
      range.assign(differs, value);
      if (!slots.is_store(i)) slots.assign_lanes(range, differs, value);
    }
  }
  bool mark(std::size_t branch) {
    if (!marked_.insert(branch).second) return false;
    const std::vector<AmdBlock>& blocks = program_.blocks.blocks();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const AmdBlock& block = blocks[b];
      if (branch < block.begin || branch >= block.end) continue;
      for (const std::size_t skipped : program_.blocks.blocks_until_ways_meet(b)) {
        const AmdBlock& inside = blocks[skipped];
        for (std::size_t i = inside.begin; i < inside.end; ++i) {
          if (!branch_of_[i]) branch_of_[i] = branch;
        }
      }
    }
    return true;
  }

  const AmdProgram& program_;
  std::vector<std::optional<std::size_t>> branch_of_;
  std::set<std::size_t> marked_;
};

}  // namespace

void barrier_findings(const AmdProgram& program, AmdFindings& findings) {
  bool any = false;
  for (const AmdInstruction& at : program.code) any = any || is_barrier(at.name);
  if (!any) return;
  Differences differences(program);
  differences.find();
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    if (!is_barrier(program.code[i].name) || !program.reached(i)) continue;
    if (const auto& branch = differences.branch_before(i)) {
      findings.add(i, fmt::format("is a barrier that not all waves come to: the branch at address {:#x} may differ between them",
                                  program.code[*branch].address));
    } else if (!program.all_lanes_on(i)) {
      findings.add(i, "is a barrier where lanes may be off");
    }
  }
}

}  // namespace fulmen::gpu
