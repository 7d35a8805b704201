#include "emulator/machine_code/decoding/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "emulator/machine_code/counting/memory_access.h"
#include "emulator/machine_code/decoding/operand_text.h"
#include "emulator/machine_code/instructions/table.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu::isa {
namespace {

Status unknown(const AmdInstruction& at, std::string_view what) {
  return {
      StatusCode::unsupported,
      fmt::format("{} {} at address {:#x}: the emulator of the instruction set does not know {}",
                  at.name, at.operands, at.address, what)};
}

std::string table_name(const AmdInstruction& at) {
  std::string_view name = at.name;
  if (loads_to_lds(at) && at.operands.ends_with(" lds")) return fmt::format("{}_lds", name);
  for (const std::string_view suffix : {"_e64_dpp", "_e32", "_e64", "_dpp", "_sdwa"}) {
    if (!name.ends_with(suffix)) continue;
    name.remove_suffix(suffix.size());
    break;
  }
  constexpr std::string_view kDual = "v_dual_";
  return name.starts_with(kDual) ? fmt::format("v_{}", name.substr(kDual.size()))
                                 : std::string(name);
}

// "vmcnt(3) lgkmcnt(0)": the number, or -1.
int64_t counter(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return -1;
  int64_t value = -1;
  std::from_chars(text.data() + at + name.size(), text.data() + text.size(), value);
  return value;
}

class Decoder {
 public:
  explicit Decoder(Program& program) : program_(program) {}

  // One instruction, or one half of a dual one.
  Status read(const AmdInstruction& at, Instruction& i) const {
    std::string name, operands;
    AmdInstruction scratch = at;
    if (program_.scratch_by_buffer && is_scratch_access(at, name, operands)) {
      scratch.name = name;
      scratch.operands = operands;
      return read_named(scratch, i);
    }
    return read_named(at, i);
  }

 private:
  // "buffer_store_dword v0, off, s[52:55], 0 offset:16" is scratch_store_dword off, v0, off: in a
  // kernel with scratch an access without lanes' offsets is taken for one.
  static bool is_scratch_access(const AmdInstruction& at, std::string& name,
                                std::string& operands) {
    constexpr std::string_view kBuffer = "buffer_";
    const std::size_t descriptor = at.operands.find(", off, s["),
                      end = at.operands.find("], 0", descriptor);
    if (!at.name.starts_with(kBuffer) || descriptor == std::string_view::npos ||
        end == std::string_view::npos || has(at.operands, " lds"))
      return false;
    const std::string_view data = at.operands.substr(0, descriptor),
                           modifiers = at.operands.substr(end + 4);
    name = fmt::format("scratch_{}", at.name.substr(kBuffer.size()));
    operands = has(name, "_load_") ? fmt::format("{}, off, off{}", data, modifiers)
                                   : fmt::format("off, {}, off{}", data, modifiers);
    return true;
  }

  Status read_named(const AmdInstruction& at, Instruction& i) const {
    std::string name(table_name(at));
    // CDNA3's fp8 is another one, by the same names.
    if (program_.is("gfx94") && (has(name, "_fp8") || has(name, "_bf8"))) name += "_fnuz";
    const Entry* entry = instruction_table().find(name);
    if (entry == nullptr) return unknown(at, "this instruction");
    i.run = program_.wave_size == 32 ? entry->wave32 : entry->wave64;
    if (i.run == nullptr) return unknown(at, "this instruction");
    i.kind = entry->kind;
    i.accesses_are_checked = i.kind != Kind::wait && i.kind != Kind::none;
    i.returns = returns_data(at);
    i.zeroes_high_half = program_.is("gfx9") && !at.name.starts_with("v_cvt_pk_fp8");
    if (at.name.starts_with("v_pk_")) i.op_sel_hi = 7;
    if (i.kind == Kind::none) return {};  // a hint
    if (at.name == "s_waitcnt") {
      i.offset = counter(at.operands, "vmcnt(");
      i.offset1 = counter(at.operands, "lgkmcnt(");
      return {};
    }
    if (at.branches) return {};  // decode() sets where it leads
    if (at.name == "s_waitcnt_depctr" || at.name == "s_wait_alu") return {};
    AmdInstruction plain = at;
    constexpr std::string_view kSwizzle = "offset:swizzle(";
    if (const std::size_t swizzle = at.operands.find(kSwizzle); swizzle != std::string_view::npos) {
      const std::optional<int64_t> lanes =
          parse_swizzle(trimmed(at.operands.substr(swizzle + kSwizzle.size())));
      if (!lanes) return unknown(at, "this exchange of lanes");
      i.offset = *lanes;
      plain.operands = at.operands.substr(0, swizzle);
    }
    if (Status status = read_operands(plain, entry->half_constants, i); !status.ok()) return status;
    select_result_half(at.name, i);
    if (!choose_halves(*entry, i)) return unknown(at, "halves of registers here");
    for (int n = 0; n < i.operands; ++n) {
      Operand& o = i.operand[static_cast<std::size_t>(n)];
      const bool part = n >= 1 && n <= 2 && i.source_part[n - 1] < 6;
      o.changed = o.negate || o.absolute || o.sign_extend || part ||
                  (n == 1 && i.dpp.mode != Dpp::Mode::none);
      if (o.source == Operand::Source::vector && !has_registers(o))
        return unknown(at, "registers that the kernel did not ask for");
    }
    return {};
  }

  // The last bit of op_sel is the result's, but for packed operations, which have none.
  static void select_result_half(std::string_view name, Instruction& i) {
    if (i.op_sels < 2 || begins_with_any(name, {"v_pk_", "v_fma_mix", "v_mad_mix", "v_dot",
                                                "v_wmma", "v_mfma", "v_permlane"}))
      return;
    const unsigned last = i.op_sels - 1U, bit = i.op_sel >> last & 1U;
    i.op_sel = static_cast<uint8_t>((i.op_sel & ~(1U << last)) | bit << 3U);
  }

  // Halves that are named say what op_sel says elsewhere: a bit a source, bit 3 for the result.
  static bool choose_halves(const Entry& entry, Instruction& i) {
    uint8_t named = 0, high = 0;
    for (int n = 0; n < i.operands; ++n) {
      const Operand::Half half = i.operand[static_cast<std::size_t>(n)].half;
      if (half == Operand::Half::none) continue;
      named = static_cast<uint8_t>(named | 1U << n);
      if (half == Operand::Half::high)
        high = static_cast<uint8_t>(high | (n == 0 ? 8U : 1U << (n - 1)));
    }
    if (named != 0) i.op_sel = high;
    return (named & ~entry.halves) == 0;
  }

  bool has_registers(const Operand& o) const {
    const int end = o.index + o.count;
    return o.index < 256 ? end <= program_.vector_registers : end - 256 <= program_.accumulators;
  }

  static Status read_operands(const AmdInstruction& at, bool half, Instruction& i) {
    for (std::string_view rest = at.operands; !rest.empty();) {
      std::string_view words = take_operand(rest);
      const std::string_view first = words.substr(0, words.find(' '));
      const bool is_modifier =
          first.find(':') != std::string_view::npos && first.find('[') == std::string_view::npos;
      if (!is_modifier) {
        if (i.operands == Instruction::kMostOperands) return unknown(at, "so many operands");
        words = words.substr(first.size());
        Operand& o = i.operand[static_cast<std::size_t>(i.operands++)];
        if (!parse_operand(first, half, o))
          return unknown(at, fmt::format("the operand {}", first));
      }
      while (!trimmed(words).empty()) {
        const std::string_view modifier = take_word(words);
        if (!parse_modifier(modifier, i))
          return unknown(at, fmt::format("the modifier {}", modifier));
      }
    }
    return {};
  }

  const Program& program_;
};

bool reads(const Instruction& i, const Operand& written) {
  for (int n = 0; n < i.operands; ++n) {
    const Operand& o = i.operand[static_cast<std::size_t>(n)];
    if (o.source == Operand::Source::vector && o.index <= written.index &&
        written.index < o.index + std::max(o.count, 1))
      return true;
  }
  return false;
}

// Executes a dual instruction: both halves read before either writes.
void run_pair(Wave& w, const Instruction& i) {
  const Instruction &x = w.program->pairs[i.target], &y = w.program->pairs[i.target + 1];
  uint32_t* const to = row<32>(w, x.operand[0].index);
  uint32_t before[32], result[32];
  std::memcpy(before, to, sizeof before);
  x.run(w, x);
  std::memcpy(result, to, sizeof result);
  std::memcpy(to, before, sizeof before);
  y.run(w, y);
  std::memcpy(to, result, sizeof result);
}

// Orders the halves so that neither reads what the other has written. Where no order does, they are
// executed as one.
void add_pair(Program& program, const Instruction& x, const Instruction& y) {
  const bool y_after_x = !reads(y, x.operand[0]), x_after_y = !reads(x, y.operand[0]);
  if (y_after_x) {
    program.code.push_back(x);
    program.code.push_back(y);
  } else if (x_after_y) {
    program.code.push_back(y);
    program.code.push_back(x);
  } else {
    Instruction pair = x;
    pair.run = run_pair;
    pair.target = static_cast<uint32_t>(program.pairs.size());
    program.pairs.push_back(x);
    program.pairs.push_back(y);
    program.code.push_back(pair);
  }
}

// The instructions of a range, with branches to others of it.
std::vector<AmdInstruction> instructions_of(std::string_view disassembly,
                                            const AddressRange& range) {
  std::vector<AmdInstruction> text = read_amd_disassembly(disassembly);
  const auto at_or_after = [&](uint64_t address) {
    return std::partition_point(text.begin(), text.end(),
                                [&](const AmdInstruction& i) { return i.address < address; });
  };
  text.erase(at_or_after(range.end), text.end());
  const auto first = at_or_after(range.begin);
  const auto before = static_cast<std::size_t>(first - text.begin());
  text.erase(text.begin(), first);
  for (AmdInstruction& i : text) {
    if (i.target == AmdInstruction::kNowhere) continue;
    const bool inside = i.target >= before && i.target - before < text.size();
    i.target = inside ? i.target - before : AmdInstruction::kNowhere;
  }
  return text;
}

}  // namespace

Status decode(Program& program, const AddressRange& range) {
  const Decoder decoder(program);
  const std::vector<AmdInstruction> text = instructions_of(program.disassembly, range);
  std::vector<uint32_t> begin(text.size());  // where each is in the code
  for (std::size_t n = 0; n < text.size(); ++n) {
    begin[n] = static_cast<uint32_t>(program.code.size());
    program.lines.push_back({text[n], access_of(text[n]), returns_data(text[n]),
                             memory_access_of(text[n]),
                             2 * static_cast<uint64_t>(shape_product(text[n].name))});
    AmdInstruction first = text[n], second;
    const std::size_t pair = first.operands.find(" :: ");
    Instruction x, y;
    x.line = y.line = n;
    if (pair != std::string_view::npos) {
      second.address = first.address;
      second.operands = first.operands.substr(pair + 4);
      second.name = take_word(second.operands);
      first.operands = first.operands.substr(0, pair);
      if (Status status = decoder.read(second, y); !status.ok()) return status;
    }
    if (Status status = decoder.read(first, x); !status.ok()) return status;
    if (pair != std::string_view::npos) {
      add_pair(program, x, y);
    } else {
      program.code.push_back(x);
    }
  }
  for (Instruction& i : program.code) {
    const AmdInstruction& at = program.lines[i.line].text;
    if (!at.branches) continue;
    if (at.target == AmdInstruction::kNowhere) return unknown(at, "where this branch leads");
    i.target = begin[at.target];
  }
  return {};
}

}  // namespace fulmen::gpu::isa
