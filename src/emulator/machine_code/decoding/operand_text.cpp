#include "emulator/machine_code/decoding/operand_text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>
#include <utility>

#include "emulator/machine_code/apertures.h"
#include "gpu/compile/report/disassembly_line.h"
#include "runtime/float_formats.h"

namespace fulmen::gpu::isa {
namespace {

std::optional<int64_t> parse_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return static_cast<int64_t>(negative ? 0 - value : value);
}

std::optional<uint64_t> parse_float(std::string_view text, bool half) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      text.find('.') == std::string_view::npos)
    return {};
  if (text == "0.15915494") return half ? 0x3118U : 0x3E22F983U;  // 1 / (2 pi)
  return half ? reference::to_fp16(value) : std::bit_cast<uint32_t>(value);
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Reads "[0,1,1]" as bits, the first one lowest.
std::optional<uint8_t> parse_bits(std::string_view list) {
  uint8_t bits = 0;
  int n = 0;
  for (const char c : list) {
    if (c == '0' || c == '1') bits = static_cast<uint8_t>(bits | (c - '0') << n++);
    if (std::string_view("[],01 ").find(c) == std::string_view::npos) return {};
  }
  return bits;
}

bool parse_lanes(std::string_view list, std::array<uint8_t, 8>& lanes) {
  std::size_t n = 0;
  for (const char c : list) {
    if (c >= '0' && c <= '7' && n < lanes.size()) lanes[n++] = static_cast<uint8_t>(c - '0');
  }
  return n == 4 || n == 8;
}

std::optional<uint8_t> parse_part(std::string_view name) {
  constexpr std::array<std::string_view, 7> kParts{"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                                   "WORD_0", "WORD_1", "DWORD"};
  const auto found = std::find(kParts.begin(), kParts.end(), name);
  if (found == kParts.end()) return {};
  return static_cast<uint8_t>(found - kParts.begin());
}

bool parse_dpp(std::string_view name, std::string_view value, Dpp& dpp) {
  using Mode = Dpp::Mode;
  if (name == "quad_perm" || name == "dpp8") {
    dpp.mode = name == "dpp8" ? Mode::dpp8 : Mode::quad_perm;
    return parse_lanes(value, dpp.lanes);
  }
  constexpr std::pair<std::string_view, Mode> kModes[] = {
      {"row_shl", Mode::row_shl},     {"row_shr", Mode::row_shr},
      {"row_ror", Mode::row_ror},     {"row_mirror", Mode::row_mirror},
      {"row_share", Mode::row_share}, {"row_half_mirror", Mode::row_half_mirror},
      {"row_xmask", Mode::row_xmask}, {"row_newbcast", Mode::row_newbcast},
      {"row_bcast", Mode::row_bcast}, {"wave_shl", Mode::wave_shl},
      {"wave_rol", Mode::wave_rol},   {"wave_shr", Mode::wave_shr},
      {"wave_ror", Mode::wave_ror}};
  for (const auto& [known, mode] : kModes) {
    if (name != known) continue;
    dpp.mode = mode;
    const std::optional<int64_t> amount =
        value.empty() ? std::optional<int64_t>(0) : parse_integer(value);
    dpp.amount = static_cast<int>(amount.value_or(0));
    return amount && dpp.amount >= 0 && dpp.amount < (mode == Mode::row_bcast ? 32 : 16);
  }
  const std::optional<int64_t> number = parse_integer(value);
  if (!number) return false;
  if (name == "row_mask") dpp.row_mask = static_cast<uint8_t>(*number);
  if (name == "bank_mask") dpp.bank_mask = static_cast<uint8_t>(*number);
  if (name == "bound_ctrl") dpp.bound_ctrl = true;  // objdump before LLVM 12 wrote 0 for it
  if (name == "fi") dpp.fetch_inactive = *number != 0;
  return begins_with_any(name, {"row_mask", "bank_mask", "bound_ctrl", "fi"});
}

bool parse_sdwa(std::string_view name, std::string_view value, Instruction& i) {
  if (name == "dst_unused") {
    i.unused = value == "UNUSED_PRESERVE" ? 1 : 0;
    return value == "UNUSED_PAD" || value == "UNUSED_PRESERVE";
  }
  // RDNA4 names a byte by its number.
  if (name == "byte_sel" && value.size() == 1 && value[0] >= '0' && value[0] <= '3') {
    i.source_part[0] = static_cast<uint8_t>(value[0] - '0');
    return true;
  }
  const std::optional<uint8_t> part = parse_part(value);
  if (!part) return false;
  if (name == "src0_sel") i.source_part[0] = *part;
  if (name == "src1_sel") i.source_part[1] = *part;
  if (name == "dst_sel") i.result_part = *part;
  return begins_with_any(name, {"src0_sel", "src1_sel", "dst_sel"});
}

}  // namespace

bool parse_operand(std::string_view text, bool half, Operand& o) {
  if (text == "off") return true;
  // Where scratch is, which needs no telling here.
  if (text == "null" || begins_with_any(text, {"flat_scratch"})) {
    o.source = Operand::Source::nothing;
    return true;
  }
  for (const auto& [name, base] :
       {std::pair{"src_shared_base", kSharedBase}, {"src_private_base", kPrivateBase}}) {
    if (text != name) continue;
    o.source = Operand::Source::literal;
    o.value = base;
    return true;
  }
  if (const std::optional<int64_t> value = parse_integer(text)) {
    o.source = Operand::Source::literal;
    o.value = static_cast<uint64_t>(*value);
    return true;
  }
  if (const std::optional<uint64_t> value = parse_float(text, half)) {
    o.source = Operand::Source::literal;
    o.value = *value;
    return true;
  }
  o.negate = take_prefix(text, "-");
  if (take_prefix(text, "sext(")) o.sign_extend = true;
  if (text.size() > 2 && text.front() == '|' && text.back() == '|') {
    o.absolute = true;
    text = text.substr(1, text.size() - 2);
  } else if (o.sign_extend && text.ends_with(')')) {
    text.remove_suffix(1);
  }
  o.half = text.ends_with(".l")   ? Operand::Half::low
           : text.ends_with(".h") ? Operand::Half::high
                                  : Operand::Half::none;
  if (o.negate || o.absolute) {  // a constant's sign
    if (Operand constant;
        parse_operand(text, half, constant) && constant.source == Operand::Source::literal) {
      o.source = constant.source;
      o.value = constant.value;
      return true;
    }
  }
  const RegisterRange range = parse_registers(text);
  if (range.count == 0) return false;
  o.source = range.is_vector() ? Operand::Source::vector : Operand::Source::scalar;
  o.index = range.is_vector() ? range.first - kVectors : range.first;
  o.count = range.count;
  return true;
}

bool parse_modifier(std::string_view text, Instruction& i) {
  // Modifiers of caches and of visibility: here memory is the same for all.
  if (text == "glc" || text == "sc0" ||
      begins_with_any(text, {"slc", "dlc", "sc1", "nt", "th:", "scope:"}))
    return true;
  if (text == "offen") return i.offen = true;
  if (text == "idxen") return i.idxen = true;
  if (text == "lds") return true;  // a part of the instruction's name in the table
  if (text == "clamp") return i.clamp = true;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon),
                         value = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  for (const auto& [known, bits] : {std::pair{"op_sel", &i.op_sel},
                                    {"op_sel_hi", &i.op_sel_hi},
                                    {"neg_lo", &i.neg_lo},
                                    {"neg_hi", &i.neg_hi}}) {
    if (name != known) continue;
    const std::optional<uint8_t> parsed = parse_bits(value);
    *bits = parsed.value_or(0);
    if (name == "op_sel")
      i.op_sels = static_cast<uint8_t>(1 + std::count(value.begin(), value.end(), ','));
    return parsed.has_value();
  }
  for (const auto& [known, offset] : {std::pair{"offset", &i.offset},
                                      {"offset0", &i.offset},
                                      {"offset1", &i.offset1},
                                      {"bitop3", &i.offset}}) {
    if (name != known) continue;
    const std::optional<int64_t> parsed = parse_integer(value);
    *offset = parsed.value_or(0);
    return parsed.has_value();
  }
  return parse_sdwa(name, value, i) || parse_dpp(name, value, i.dpp);
}

std::optional<int64_t> parse_swizzle(std::string_view text) {
  if (!text.ends_with(')')) return {};
  text.remove_suffix(1);
  const std::string_view kind = text.substr(0, text.find(','));
  std::array<int64_t, 4> number{};
  std::size_t count = 0;
  for (std::string_view rest = text.substr(kind.size()); kind != "BITMASK_PERM" && !rest.empty();
       ++count) {
    rest.remove_prefix(1);  // the comma
    const std::string_view one = rest.substr(0, rest.find(','));
    const std::optional<int64_t> value = parse_integer(one);
    if (!value || count == number.size()) return {};
    number[count] = *value;
    rest.remove_prefix(one.size());
  }
  // Bit masks on a lane's number within 32 lanes: the bits that are kept, set and inverted.
  const auto masks = [](int64_t kept, int64_t set, int64_t inverted) {
    return kept | set << 5U | inverted << 10U;
  };
  if (kind == "QUAD_PERM" && count == 4)
    return 0x8000 | number[0] | number[1] << 2U | number[2] << 4U | number[3] << 6U;
  if (kind == "SWAP" && count == 1) return masks(31, 0, number[0]);
  if (kind == "REVERSE" && count == 1) return masks(31, 0, number[0] - 1);
  if (kind == "BROADCAST" && count == 2) return masks(32 - number[0], number[1], 0);
  constexpr std::string_view kBitmask = "BITMASK_PERM,\"";
  if (!text.starts_with(kBitmask) || text.size() != kBitmask.size() + 6) return {};
  int64_t kept = 0, set = 0, inverted = 0;
  for (const char c : text.substr(kBitmask.size(), 5)) {
    kept = kept << 1U | (c == 'p' || c == 'i' ? 1 : 0);
    set = set << 1U | (c == '1' ? 1 : 0);
    inverted = inverted << 1U | (c == 'i' ? 1 : 0);
  }
  return masks(kept, set, inverted);
}

}  // namespace fulmen::gpu::isa
