// Barriers that not all lanes, or not all waves of a workgroup, come to: a wave that waits at one
// alone waits for ever, or meets another barrier's waves.
//
// Waves differ in what comes from the work-item's number (v0) and from the hardware's wave number.
// All that is computed from it differs, what is loaded from there, and what is written where only
// some waves or lanes come. A branch on such a value may not have a barrier before its ways meet
// again. What is written there, but is only moved back to where it was before the branch, differs
// no more than it did then.
#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "gpu/compile/amd_rules/kept_values.h"
#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

bool is_barrier(std::string_view name) { return name.starts_with("s_barrier"); }

class Differences {
 public:
  explicit Differences(const AmdProgram& program)
      : program_(program),
        kept_(program.code, program.access, program.slots, program.blocks),
        branches_of_(program.code.size()),
        at_branch_(program.code.size()) {}

  // Finds the branches on which waves differ until there are no more: what they skip differs, too.
  void find() {
    for (bool more = true; more;) {
      more = false;
      const auto step = [&](RegisterSet& differs, std::size_t i) {
        const AmdInstruction& at = program_.code[i];
        if (at.branches && at.falls_through && (differs & ~at_branch_[i]).any()) {
          at_branch_[i] |= differs;
          more = true;
        }
        follow(i, differs);
      };
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
  std::optional<std::size_t> branch_before(std::size_t i) const {
    return branches_of_[i].empty() ? std::nullopt : std::optional(branches_of_[i].front());
  }

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
    const std::vector<RegisterRange>& reads = program_.access[i].reads;
    return any_differs(i, std::span(reads), differs) ||
           begins_with_any(at.name, {"s_getreg", "v_mbcnt"});
  }
  bool any_differs(std::size_t i, std::span<const RegisterRange> reads,
                   const RegisterSet& differs) const {
    return std::any_of(reads.begin(), reads.end(), [&](const RegisterRange& range) {
      return range.first == kExecLow ? !program_.all_lanes_on(i) : range.any_in(differs);
    });
  }
  void follow(std::size_t i, RegisterSet& differs) const {
    const SpillSlots& slots = program_.slots;
    // A spilled scalar goes its way whatever lanes are on.
    const bool some_lanes =
        !program_.all_lanes_on(i) && program_.code[i].name.starts_with("v_") && slots.of(i) < 0;
    const AmdAccess& access = program_.access[i];
    if (access.first_writes < access.writes.size()) {
      // The halves of a dual instruction have nothing to do with each other but that both read
      // before any writes.
      const std::span reads(access.reads), writes(access.writes);
      const bool either = !branches_of_[i].empty() || some_lanes;
      const bool first = either || any_differs(i, reads.first(access.first_reads), differs);
      const bool second = either || any_differs(i, reads.subspan(access.first_reads), differs);
      for (const RegisterRange& range : writes.first(access.first_writes))
        assign(range, differs, first);
      for (const RegisterRange& range : writes.subspan(access.first_writes))
        assign(range, differs, second);
      return;
    }
    if (moves_pair(i)) {
      const auto from = static_cast<std::size_t>(access.reads[0].first);
      const std::array before{differs[from], differs[from + 1]};
      for (int n = 0; n < 2; ++n) {
        const int to = access.writes[0].first + n;
        const bool differs_there = !branches_of_[i].empty() || before[static_cast<std::size_t>(n)];
        differs[static_cast<std::size_t>(to)] = differs_there && differs_after_move(i, to);
      }
      return;
    }
    const bool value = !branches_of_[i].empty() || some_lanes || reads_any(i, differs);
    if (slots.is_store(i))
      differs[static_cast<std::size_t>(slots.of(i))] = value && differs_after_move(i, slots.of(i));
    const bool keeps_lanes = program_.code[i].name.starts_with("v_writelane");
    for (const RegisterRange& range : access.writes) {
      if (keeps_lanes && !value) continue;
      for (int r = range.first; r < range.first + range.count; ++r) {
        differs[static_cast<std::size_t>(r)] = value && differs_after_move(i, r);
      }
      if (!slots.is_store(i)) slots.assign_lanes(range, differs, value);
    }
  }
  // One half of the pair may differ, and the other one not.
  bool moves_pair(std::size_t i) const {
    const std::vector<RegisterRange>& reads = program_.access[i].reads;
    return program_.code[i].name == "s_mov_b64" && reads.size() == 1 && reads[0].count == 2 &&
           reads[0].first != kExecLow;
  }
  void assign(const RegisterRange& range, RegisterSet& differs, bool value) const {
    range.assign(differs, value);
    program_.slots.assign_lanes(range, differs, value);
  }
  // Whether waves differ in register r, which instruction i writes where only some of them come:
  // not if it holds again what it held at each of the branches around i, and they did not differ
  // there.
  bool differs_after_move(std::size_t i, int r) const {
    const std::vector<std::size_t>& branches = branches_of_[i];
    return branches.empty() ||
           std::any_of(branches.begin(), branches.end(), [&](std::size_t branch) {
             if (at_branch_[branch][static_cast<std::size_t>(r)]) return true;
             const std::optional<std::size_t> source = kept_.restored(i, r, branch);
             // An instruction that the branch may skip can run again, in a loop: the same number,
             // another value.
             return !source || (*source != KeptValues::kNowhere && is_within(*source, branch));
           });
  }
  bool is_within(std::size_t i, std::size_t branch) const {
    return std::find(branches_of_[i].begin(), branches_of_[i].end(), branch) !=
           branches_of_[i].end();
  }
  bool mark(std::size_t branch) {
    if (!marked_.insert(branch).second) return false;
    const std::vector<AmdBlock>& blocks = program_.blocks.blocks();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const AmdBlock& block = blocks[b];
      if (branch < block.begin || branch >= block.end) continue;
      for (const std::size_t skipped : program_.blocks.blocks_before_post_dominator(b)) {
        const AmdBlock& inside = blocks[skipped];
        for (std::size_t i = inside.begin; i < inside.end; ++i) {
          branches_of_[i].push_back(branch);
        }
      }
    }
    return true;
  }

  const AmdProgram& program_;
  KeptValues kept_;
  // The branches on which waves differ, by instruction.
  std::vector<std::vector<std::size_t>> branches_of_;
  std::vector<RegisterSet> at_branch_;  // what differs there
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
    if (const auto branch = differences.branch_before(i)) {
      findings.add(i, fmt::format("is a barrier that not all waves come to: the branch at address "
                                  "{:#x} may differ between them",
                                  program.code[*branch].address));
    } else if (!program.all_lanes_on(i)) {
      findings.add(i, "is a barrier where lanes may be off");
    }
  }
}

}  // namespace fulmen::gpu
