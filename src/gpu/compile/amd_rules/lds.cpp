// LDS outside of what the kernel asks for: by an offset alone, or with an address that is a
// constant. Such a read gives 0 and such a write is dropped on the chips, or they meet another
// workgroup's data.
#include <array>
#include <charconv>
#include <cstdint>

#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kNotKnown = -1;
using Constants = std::array<int64_t, kScalarRegisters + 256>;  // by register

// "offset1:17" among the modifiers.
int64_t modifier(std::string_view operands, std::string_view name) {
  const std::size_t at = operands.find(name);
  int64_t value = 0;
  if (at == std::string_view::npos) return 0;
  const char* const begin = operands.data() + at + name.size();
  std::from_chars(begin, operands.data() + operands.size(), value);
  return value;
}

int64_t element_bytes(std::string_view name) {
  if (has(name, "_b128")) return 16;
  if (has(name, "_b96")) return 12;
  if (has(name, "64"))
    return name.find("64") == name.find("st64") + 2 && !has(name, "_b64") ? 4 : 8;
  if (has(name, "16")) return 2;
  return has(name, "8") ? 1 : 4;
}

// Bytes from the address to the end of what is read or written.
int64_t end_of_access(const AmdInstruction& at) {
  const bool strided = has(at.name, "st64") || has(at.name, "stride64");
  const bool two = has(at.name, "2addr") || has(at.name, "read2") || has(at.name, "write2");
  if (!two) return modifier(at.operands, "offset:") + element_bytes(at.name);
  const int64_t bytes = has(at.name, "_b64") ? 8 : 4;
  const int64_t last =
      std::max(modifier(at.operands, "offset0:"), modifier(at.operands, "offset1:"));
  return (last * (strided ? 64 : 1) + 1) * bytes;
}

bool is_lds_access(std::string_view name) {
  return name.starts_with("ds_") &&
         !begins_with_any(name, {"ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop", "ds_gws",
                                 "ds_consume", "ds_append", "ds_ordered"});
}

// "v_mov_b32_e32 v1, 0x100" makes v1 known; whatever else is written is not.
void follow_constants(const AmdProgram& program, std::size_t i, Constants& constants) {
  const AmdInstruction& at = program.code[i];
  for (const RegisterRange& range : program.access[i].writes) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      if (r < static_cast<int>(constants.size()))
        constants[static_cast<std::size_t>(r)] = kNotKnown;
    }
  }
  std::string_view rest = at.operands;
  if (!begins_with_any(at.name, {"v_mov_b32", "s_mov_b32", "s_movk_i32"}) || has(at.name, "dpp") ||
      has(at.name, "sdwa"))
    return;
  const RegisterRange to = parse_registers(take_operand(rest));
  std::string_view from = take_operand(rest);
  if (to.count != 1 || to.first >= static_cast<int>(constants.size())) return;
  int64_t value = kNotKnown;
  if (const RegisterRange source = parse_registers(from); source.count == 1) {
    if (source.first < static_cast<int>(constants.size()))
      value = constants[static_cast<std::size_t>(source.first)];
  } else if (!from.empty()) {
    const bool hexadecimal = from.starts_with("0x");
    if (hexadecimal) from.remove_prefix(2);
    const char* const end = from.data() + from.size();
    const auto [next, error] = std::from_chars(from.data(), end, value, hexadecimal ? 16 : 10);
    if (error != std::errc() || next != end) value = kNotKnown;
  }
  constants[static_cast<std::size_t>(to.first)] = value;
}

}  // namespace

void lds_findings(const AmdProgram& program, AmdFindings& findings) {
  if (program.facts.lds_bytes < 0) return;
  Constants entry;
  entry.fill(kNotKnown);
  const auto step = [&](Constants& constants, std::size_t i) {
    follow_constants(program, i, constants);
  };
  const auto meet = [](Constants& constants, const Constants& more) {
    bool changed = false;
    for (std::size_t r = 0; r < constants.size(); ++r) {
      if (constants[r] == more[r] || constants[r] == kNotKnown) continue;
      constants[r] = kNotKnown;
      changed = true;
    }
    return changed;
  };
  const auto before =
      states_before_blocks(program.flow, entry, step, [](Constants&, const AmdEdge&) {}, meet);
  visit_instructions(program.flow, before, [&](Constants& constants, std::size_t i) {
    const AmdInstruction& at = program.code[i];
    if (is_lds_access(at.name)) {
      std::string_view rest = at.operands;
      if (returns_data(at)) take_operand(rest);
      const RegisterRange address = parse_registers(take_operand(rest));
      const bool in_table =
          address.count == 1 && address.first < static_cast<int>(constants.size());
      const int64_t base =
          in_table ? constants[static_cast<std::size_t>(address.first)] : kNotKnown;
      const int64_t end = end_of_access(at) + std::max<int64_t>(base, 0);
      if (end > program.facts.lds_bytes) {
        findings.add(i, fmt::format("reaches byte {} of LDS: the kernel has {}", end,
                                    program.facts.lds_bytes));
      }
    }
    step(constants, i);
  });
}

}  // namespace fulmen::gpu
