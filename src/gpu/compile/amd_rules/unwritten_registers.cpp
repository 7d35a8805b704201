// Registers that are read where no way there has written them.
//
// On some ways they may be as they were: compilers keep a value in a register that only some ways
// set, and read it where another condition, that holds on these alone, lets them. Likewise lanes: a
// vector register counts as written where any of its lanes were. Of a product or sum of 64 bits, or
// of two numbers, only the lower half may matter, and then the upper halves of what goes into it
// are left as they were. A copy of what nothing has written is no use of it, and is unwritten, too:
// compilers spill four registers, scalars to lanes or vectors to scratch, of which they need two.
#include <bitset>
#include <charconv>
#include <optional>
#include <span>
#include <vector>

#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

constexpr std::size_t kScratchWords = 4096;  // of a lane, by their constant addresses

struct Written {
  RegisterSet registers;
  std::bitset<kScratchWords> scratch;
  bool operator==(const Written&) const = default;
};

// The part of what an instruction reads that always matters.
RegisterRange that_matters(std::string_view name, const RegisterRange& range) {
  const bool lower_half =
      begins_with_any(name, {"v_mad_u64_u32", "v_mad_co_u64_u32", "v_mad_i64_i32",
                             "v_mad_co_i64_i32", "v_lshl_add_u64", "v_lshlrev_b64", "s_lshl_b64",
                             "s_add_nc_u64", "s_sub_nc_u64", "s_mul_u64", "v_pk_"});
  return lower_half ? RegisterRange{range.first, 1} : range;
}

bool is_move(std::string_view name) {
  return begins_with_any(
      name, {"v_mov_b32", "v_mov_b64", "v_dual_mov_b32", "s_mov_b32", "s_mov_b64", "v_accvgpr_"});
}

// An instruction of scratch whose address is a constant: the registers it moves, and the first
// word.
struct ScratchMove {
  bool stores = false;
  RegisterRange registers;
  std::size_t word = 0;
};

std::optional<int> number_behind(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  int number = 0;
  const auto [end, error] =
      std::from_chars(text.data() + at + key.size(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// "scratch_store_b128 off, v[5:8], off offset:16", "scratch_load_dwordx2 v[2:3], off, off".
std::optional<ScratchMove> scratch_move(const AmdInstruction& at) {
  if (!at.name.starts_with("scratch_") || has(at.name, "_b8") || has(at.name, "_b16") ||
      has(at.name, "_d16"))
    return std::nullopt;
  if (!has(at.name, "_b") && !has(at.name, "_dword")) return std::nullopt;
  const auto [first, second, third] = FirstOperands(at.operands);
  ScratchMove move;
  move.stores = has(at.name, "_store");
  move.registers = parse_registers(move.stores ? second : first);
  const int offset = number_behind(third, "offset:").value_or(0);
  const bool constant =
      (move.stores ? first : second) == "off" && third.substr(0, third.find(' ')) == "off";
  if (!constant || move.registers.count == 0 || offset < 0 || offset % 4 != 0) return std::nullopt;
  move.word = static_cast<std::size_t>(offset) / 4;
  if (move.word + static_cast<std::size_t>(move.registers.count) > kScratchWords)
    return std::nullopt;
  return move;
}

// Spills of chips without scratch instructions: the address is the same for all lanes, which is
// what no tensor's is.
bool is_buffer_spill(const AmdInstruction& at) {
  if (!at.name.starts_with("buffer_store_dword")) return false;
  std::string_view rest = at.operands;
  take_operand(rest);
  return take_operand(rest) == "off";
}

class Rule {
 public:
  explicit Rule(const AmdProgram& program) : program_(program) {
    for (const AmdInstruction& at : program.code) scratch_.push_back(scratch_move(at));
  }

  Written at_start() const {
    Written written;
    RegisterRange{0, program_.facts.initial_scalars}.assign(written.registers, true);
    RegisterRange{kVectors, program_.facts.initial_vectors}.assign(written.registers, true);
    // gfx12: the workgroup's number.
    RegisterRange{kFirstTrap, kM0 - kFirstTrap}.assign(written.registers, true);
    RegisterRange{kExecLow, 2}.assign(written.registers, true);
    return written;
  }

  bool uses_unwritten(std::size_t i, const Written& written) const {
    const AmdInstruction& at = program_.code[i];
    if (program_.slots.of(i) >= 0 || scratch_[i] || is_buffer_spill(at)) return false;
    bool uses = false;
    each_part(i, [&](std::string_view name, std::span<const RegisterRange> reads,
                     std::span<const RegisterRange>) {
      if (is_move(name)) return;
      for (const RegisterRange& range : reads)
        uses = uses || !that_matters(name, range).all_in(written.registers);
    });
    return uses;
  }

  void follow(std::size_t i, Written& written) const {
    if (const auto& move = scratch_[i]) return follow_scratch(*move, written);
    if (program_.slots.of(i) >= 0) return follow_slot(i, written.registers);
    if (program_.code[i].name.starts_with("scratch_store")) written.scratch.set();  // anywhere
    const RegisterSet before = written.registers;
    each_part(i, [&](std::string_view name, std::span<const RegisterRange> reads,
                     std::span<const RegisterRange> writes) {
      for (const RegisterRange& range : writes) {
        const bool copies = is_move(name) && reads.size() == 1 && reads[0].count == range.count;
        for (int n = 0; n < range.count; ++n) {
          if (copies &&
              !before[static_cast<std::size_t>(reads[0].first) + static_cast<std::size_t>(n)])
            continue;
          const RegisterRange one{range.first + n, 1};
          one.assign(written.registers, true);
          program_.slots.assign_lanes(one, written.registers, true);
        }
      }
    });
  }

 private:
  // The halves of a dual instruction, or the whole of another.
  template <class Visit>
  void each_part(std::size_t i, const Visit& visit) const {
    const AmdAccess& access = program_.access[i];
    const std::span reads(access.reads), writes(access.writes);
    const AmdInstruction& at = program_.code[i];
    visit(at.name, reads.first(access.first_reads), writes.first(access.first_writes));
    const std::size_t dual = at.operands.find(" :: ");
    if (dual == std::string_view::npos) return;
    std::string_view second = at.operands.substr(dual + 4);
    visit(take_word(second), reads.subspan(access.first_reads),
          writes.subspan(access.first_writes));
  }
  static void follow_scratch(const ScratchMove& move, Written& written) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(move.registers.count); ++n) {
      const std::size_t r = static_cast<std::size_t>(move.registers.first) + n,
                        word = move.word + n;
      if (move.stores) {
        written.scratch[word] = written.scratch[word] || written.registers[r];
      } else {
        written.registers[r] = written.registers[r] || written.scratch[word];
      }
    }
  }
  // A scalar to a lane, or back.
  void follow_slot(std::size_t i, RegisterSet& written) const {
    const AmdAccess& access = program_.access[i];
    const auto slot = static_cast<std::size_t>(program_.slots.of(i));
    if (program_.slots.is_load(i)) {
      if (written[slot]) access.writes.front().assign(written, true);
      return;
    }
    // Its vector register is one of scalars: it counts as written, as what else reads it takes
    // whole registers.
    bool whole = true;
    for (const RegisterRange& range : access.reads) whole = whole && range.all_in(written);
    if (!whole) return;
    for (const RegisterRange& range : access.writes) range.assign(written, true);
    written[slot] = true;
  }

  const AmdProgram& program_;
  std::vector<std::optional<ScratchMove>> scratch_;
};

}  // namespace

void unwritten_register_findings(const AmdProgram& program, AmdFindings& findings) {
  if (program.facts.initial_scalars < 0 || program.facts.initial_vectors < 0) return;
  const Rule rule(program);
  const auto step = [&](Written& written, std::size_t i) { rule.follow(i, written); };
  const auto meet = [](Written& written, const Written& more) {
    const Written either{written.registers | more.registers, written.scratch | more.scratch};
    const bool changed = either != written;
    written = either;
    return changed;
  };
  const auto before = states_before_blocks(
      program.blocks, rule.at_start(), step, [](Written&, const AmdEdge&) {}, meet);
  visit_instructions(program.blocks, before, [&](Written& written, std::size_t i) {
    if (rule.uses_unwritten(i, written)) {
      findings.add(i, "reads a register that nothing has written");
      for (const RegisterRange& range : program.access[i].reads)
        range.assign(written.registers, true);  // once
    }
    step(written, i);
  });
}

}  // namespace fulmen::gpu
