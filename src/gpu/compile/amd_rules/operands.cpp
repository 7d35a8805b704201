#include "gpu/compile/amd_rules/operands.h"

#include <algorithm>
#include <charconv>

#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

// "3", "[4:7]" behind a register's letter, numbered from base.
RegisterRange numbered(std::string_view text, int base, int limit) {
  const bool several = text.starts_with('[');
  if (several) text.remove_prefix(1);
  int first = 0, last = 0;
  const char* const end = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data(), end, first);
  if (error != std::errc()) return {};
  last = first;
  if (several && next != end && *next == ':') {
    if (std::from_chars(next + 1, end, last).ec != std::errc()) return {};
  } else if (!several && next != end && *next != '.') {
    return {};
  }
  if (first < 0 || last < first || last >= limit) return {};
  return {base + first, last - first + 1};
}

// How the operands of an instruction begin.
struct Shape {
  int destinations = 1;
  bool reads_destination = false;
};

bool writes_nothing(std::string_view name) {
  return begins_with_any(name, {"s_cmp",       "s_bitcmp",   "s_cbranch",
                                "s_branch",    "s_wait",     "s_nop",
                                "s_barrier",   "s_endpgm",   "s_set",
                                "s_delay_alu", "s_clause",   "s_sleep",
                                "s_icache",    "s_dcache",   "s_inst_prefetch",
                                "s_trap",      "s_prefetch", "s_buffer_prefetch",
                                "s_code_end",  "s_ttrace",   "s_incperf",
                                "s_decperf",   "v_nop",      "ds_nop",
                                "s_version",   "s_store",    "s_buffer_store"}) ||
         name == "s_sendmsg" || name == "s_sendmsghalt";
}

Shape shape_of(const AmdInstruction& instruction, int operand_count) {
  const std::string_view name = instruction.name;
  if (writes_nothing(name)) return {.destinations = 0};
  if (begins_with_any(name,
                      {"global_", "buffer_", "flat_", "scratch_", "tbuffer_", "image_", "ds_"})) {
    // The old value that an atomic of a buffer returns takes the place of its data.
    return {.destinations = returns_data(instruction) ? 1 : 0,
            .reads_destination = has(name, "buffer_atomic_")};
  }
  // gfx9 and older name the register of v_cmpx.
  if (name.starts_with("v_cmpx_")) return {.destinations = operand_count > 2 ? 1 : 0};
  if (begins_with_any(name, {"v_swap_b", "v_permlane16_swap_", "v_permlane32_swap_"}))
    return {.destinations = 2, .reads_destination = true};
  const bool carries = name.starts_with("v_") && has(name, "_co_");
  if (carries || begins_with_any(name, {"v_mad_u64_u32", "v_mad_i64_i32", "v_div_scale_"}))
    return {.destinations = 2};
  const bool accumulates =
      begins_with_any(name, {"v_fmac_", "v_dual_fmac_", "v_mac_", "v_pk_fmac_", "v_dot2c_",
                             "v_dot2acc_", "v_dot4c_", "s_fmac_", "s_addk_", "s_mulk_", "s_cmov",
                             "s_bitset", "s_bitreplicate"}) &&
      !name.starts_with("s_bitreplicate");
  return {.destinations = 1, .reads_destination = accumulates};
}

bool writes_scc(std::string_view name) {
  if (!name.starts_with("s_") || has(name, "_saveexec_") || has(name, "_wrexec_"))
    return name.starts_with("s_");
  if (begins_with_any(name, {"s_cmp", "s_bitcmp"})) return true;
  if (begins_with_any(name, {"s_add_f", "s_sub_f", "s_min_f", "s_max_f", "s_min_num", "s_max_num",
                             "s_not_f", "s_bfm", "s_addk_co", "s_andn2_wr"})) {
    return name.starts_with("s_addk_co");
  }
  // 64-bit sums of gfx12 have no carry.
  if (begins_with_any(name, {"s_add_nc_", "s_sub_nc_"})) return false;
  return begins_with_any(name, {"s_add", "s_sub", "s_and", "s_or", "s_xor", "s_xnor", "s_nand",
                                "s_nor", "s_not", "s_lsh", "s_ashr", "s_bfe", "s_abs", "s_min_",
                                "s_max_", "s_bcnt", "s_wqm", "s_quadmask"});
}

bool reads_scc(std::string_view name) {
  return begins_with_any(name, {"s_cselect", "s_addc_", "s_subb_", "s_add_co_ci_", "s_sub_co_ci_",
                                "s_cmov", "s_cbranch_scc"});
}

// The registers of a pair that s_bfe_i64 and s_bfe_u64 take bits of: bits 0 to 5 of the last
// operand say where the field begins, those from 16 on how wide it is.
RegisterRange registers_of_field(const RegisterRange& pair, std::string_view field) {
  const bool hexadecimal = field.starts_with("0x");
  if (hexadecimal) field.remove_prefix(2);
  uint32_t bits = 0;
  const auto [end, error] =
      std::from_chars(field.data(), field.data() + field.size(), bits, hexadecimal ? 16 : 10);
  if (error != std::errc() || end != field.data() + field.size() || pair.count != 2) return pair;
  const uint32_t begin = bits & 63U, width = bits >> 16U & 127U;
  if (begin + width <= 32) return {pair.first, 1};
  return begin >= 32 ? RegisterRange{pair.first + 1, 1} : pair;
}

// One instruction, or one half of a dual one.
void add_access(const AmdInstruction& instruction, AmdAccess& access) {
  std::vector<RegisterRange> operands;
  for (std::string_view rest = instruction.operands; !rest.empty();)
    operands.push_back(parse_registers(take_operand(rest)));
  const Shape shape = shape_of(instruction, static_cast<int>(operands.size()));
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const RegisterRange& range = operands[static_cast<std::size_t>(i)];
    if (range.count == 0) continue;
    if (i < shape.destinations) access.writes.push_back(range);
    if (i >= shape.destinations || shape.reads_destination) access.reads.push_back(range);
  }
  const std::string_view name = instruction.name;
  if (name.starts_with("s_bfe_") && name.ends_with("64") && !access.reads.empty())
    access.reads.front() =
        registers_of_field(access.reads.front(), FirstOperands(instruction.operands).third);
  constexpr RegisterRange kVccBoth{kVccLow, 2}, kVccOne{kVccLow, 1}, kExecBoth{kExecLow, 2},
      kExecOne{kExecLow, 1}, kSccOnly{kScc, 1};
  const bool saves_exec = has(name, "_saveexec_") || has(name, "_wrexec_");
  const bool pairs = name.ends_with("_b64");
  if (name.starts_with("v_cmpx_")) access.writes.push_back(kExecBoth);
  if (saves_exec) access.writes.push_back(pairs ? kExecBoth : kExecOne);
  if (saves_exec || name.starts_with("s_cbranch_exec")) access.reads.push_back(kExecOne);
  if (name.starts_with("s_cbranch_vcc") || name.starts_with("v_div_fmas") ||
      name.starts_with("v_dual_cndmask")) {
    access.reads.push_back(kVccOne);  // its upper half exists in waves of 64 lanes alone
  }
  if (name.starts_with("s_cbranch_cdbg")) access.reads.push_back(kVccBoth);
  if (loads_to_lds(instruction)) access.reads.push_back({kM0, 1});
  if (reads_scc(name)) access.reads.push_back(kSccOnly);
  if (writes_scc(name)) access.writes.push_back(kSccOnly);
}

}  // namespace

std::string_view take_operand(std::string_view& operands) {
  std::size_t end = 0;
  for (int depth = 0; end < operands.size() && (operands[end] != ',' || depth > 0); ++end) {
    depth += operands[end] == '[' ? 1 : operands[end] == ']' ? -1 : 0;
  }
  const std::string_view operand = trimmed(operands.substr(0, end));
  operands.remove_prefix(end == operands.size() ? end : end + 1);
  return operand;
}

RegisterRange parse_registers(std::string_view operand) {
  operand = operand.substr(0, operand.find(' '));  // modifiers
  while (!operand.empty() && (operand.front() == '-' || operand.front() == '|'))
    operand.remove_prefix(1);
  for (const std::string_view wrapped : {"abs(", "neg(", "sext("}) {
    if (operand.starts_with(wrapped)) operand.remove_prefix(wrapped.size());
  }
  operand = operand.substr(0, operand.find_first_of("|)"));
  if (operand == "vcc") return {kVccLow, 2};
  if (operand == "vcc_lo") return {kVccLow, 1};
  if (operand == "vcc_hi") return {kVccLow + 1, 1};
  if (operand == "exec") return {kExecLow, 2};
  if (operand == "exec_lo") return {kExecLow, 1};
  if (operand == "exec_hi") return {kExecLow + 1, 1};
  if (operand == "m0") return {kM0, 1};
  if (operand == "scc" || operand == "src_scc") return {kScc, 1};
  if (operand.starts_with("ttmp"))
    return numbered(operand.substr(4), kFirstTrap, kM0 - 1 - kFirstTrap);
  if (operand.size() < 2) return {};
  if (operand.front() == 's') return numbered(operand.substr(1), 0, kVccLow);
  if (operand.front() == 'v') return numbered(operand.substr(1), kVectors, 256);
  if (operand.front() == 'a') return numbered(operand.substr(1), kAccumulators, 256);
  return {};
}

bool loads_to_lds(const AmdInstruction& instruction) {
  return instruction.operands.ends_with(" lds") || instruction.name.starts_with("global_load_lds_");
}

bool returns_data(const AmdInstruction& instruction) {
  const std::string_view name = instruction.name, operands = instruction.operands;
  if (has(name, "_store") || has(name, "_inv") || has(name, "_wb") || loads_to_lds(instruction))
    return false;
  if (name.starts_with("ds_")) {
    const bool reads =
        begins_with_any(name, {"ds_load", "ds_read", "ds_bpermute", "ds_permute", "ds_swizzle",
                               "ds_consume", "ds_append", "ds_condxchg", "ds_ordered"});
    return reads || has(name, "_rtn");
  }
  if (!has(name, "_atomic")) return has(name, "_load") || name.starts_with("image_");
  return has(operands, " glc") || has(operands, " sc0") || has(operands, "ATOMIC_RETURN");
}

AmdAccess access_of(const AmdInstruction& instruction) {
  AmdAccess access;
  AmdInstruction half = instruction;
  // "v_dual_mov_b32 v1, v2 :: v_dual_mul_f32 v3, v4, v5": both read before any writes.
  for (std::size_t at = 0; (at = half.operands.find(" :: ")) != std::string_view::npos;) {
    const std::string_view rest = half.operands.substr(at + 4);
    half.operands = half.operands.substr(0, at);
    add_access(half, access);
    access.first_reads = access.reads.size();
    access.first_writes = access.writes.size();
    half.operands = rest;
    half.name = take_word(half.operands);
  }
  const bool dual = access.first_writes > 0;
  add_access(half, access);
  if (!dual) {
    access.first_reads = access.reads.size();
    access.first_writes = access.writes.size();
  }
  return access;
}

}  // namespace fulmen::gpu
