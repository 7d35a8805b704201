// Registers that are read where no way there has written them.
//
// On some ways they may be as they were: compilers keep a value in a register that only some ways set, and read it
// where another condition, that holds on these alone, lets them. Likewise lanes: a vector register counts as written
// where any of its lanes were. Of a product or sum of 64 bits, or of two numbers, only the lower half may matter, and then
// the upper halves of what goes into it are left as they were. A copy of what nothing has written is no use of it, and is
// unwritten, too: compilers spill four scalar registers of which they need two.
#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

// Of what an instruction reads, the part that always matters.
RegisterRange that_matters(const AmdInstruction& at, const RegisterRange& range) {
  const bool lower_half =
      begins_with_any(at.name, {"v_mad_u64_u32", "v_mad_co_u64_u32", "v_mad_i64_i32", "v_mad_co_i64_i32", "v_lshl_add_u64",
                                "v_lshlrev_b64", "s_lshl_b64", "s_add_nc_u64", "s_sub_nc_u64", "s_mul_u64", "v_pk_"});
  return lower_half ? RegisterRange{range.first, 1} : range;
}

bool copies(const AmdProgram& program, std::size_t i) {
  return program.slots.of(i) >= 0 ||
         begins_with_any(program.code[i].name, {"v_mov_b32", "v_mov_b64", "s_mov_b32", "s_mov_b64", "v_accvgpr_"});
}

bool reads_unwritten(const AmdProgram& program, std::size_t i, const RegisterSet& written) {
  if (program.slots.is_load(i)) return !written[static_cast<std::size_t>(program.slots.of(i))];
  for (const RegisterRange& range : program.access[i].reads) {
    if (!that_matters(program.code[i], range).all_in(written)) return true;
  }
  return false;
}

void follow(const AmdProgram& program, std::size_t i, RegisterSet& written) {
  if (copies(program, i) && reads_unwritten(program, i, written)) return;
  for (const RegisterRange& range : program.access[i].writes) {
    range.assign(written, true);
    if (!program.slots.is_store(i)) program.slots.assign_lanes(range, written, true);
  }
  if (program.slots.is_store(i)) written[static_cast<std::size_t>(program.slots.of(i))] = true;
}

RegisterSet set_at_start(const AmdKernelFacts& facts) {
  RegisterSet written;
  RegisterRange{0, facts.initial_scalars}.assign(written, true);
  RegisterRange{kVectors, facts.initial_vectors}.assign(written, true);
  RegisterRange{kFirstTrap, kM0 - kFirstTrap}.assign(written, true);  // gfx12: the workgroup's number
  RegisterRange{kExecLow, 2}.assign(written, true);
  return written;
}

}  // namespace

void unwritten_register_findings(const AmdProgram& program, AmdFindings& findings) {
  if (program.facts.initial_scalars < 0 || program.facts.initial_vectors < 0) return;
  const auto step = [&](RegisterSet& written, std::size_t i) { follow(program, i, written); };
  const auto meet = [](RegisterSet& written, const RegisterSet& more) {
    const RegisterSet either = written | more;
    const bool changed = either != written;
    written = either;
    return changed;
  };
  const auto before =
      states_before_blocks(program.blocks, set_at_start(program.facts), step, [](RegisterSet&, const AmdEdge&) {}, meet);
  visit_instructions(program.blocks, before, [&](RegisterSet& written, std::size_t i) {
    if (!copies(program, i) && reads_unwritten(program, i, written)) {
      findings.add(i, "reads a register that nothing has written");
      for (const RegisterRange& range : program.access[i].reads) range.assign(written, true);  // once
    }
    step(written, i);
  });
}

}  // namespace fulmen::gpu
