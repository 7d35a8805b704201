#include "gpu/compile/amd_rules/mask_steps.h"

#include <charconv>
#include <cstddef>

#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

struct Range {
  int first = -1, last = -1;  // of mask registers; -1: none
};

// "s3", "s[4:7]", "vcc", "vcc_lo", "vcc_hi", "exec", "exec_lo".
Range mask_registers(std::string_view operand) {
  if (operand == "vcc") return {kVcc, kVcc + 1};
  if (operand == "vcc_lo") return {kVcc, kVcc};
  if (operand == "vcc_hi") return {kVcc + 1, kVcc + 1};
  if (operand.starts_with("exec")) return {kExec, kExec};
  if (!operand.starts_with('s') || operand.size() < 2) return {};
  operand.remove_prefix(1);
  const bool several = operand.front() == '[';
  if (several) operand.remove_prefix(1);
  Range range;
  const auto [next, error] =
      std::from_chars(operand.data(), operand.data() + operand.size(), range.first);
  if (error != std::errc() || range.first >= kSgprs) return {};
  range.last = range.first;
  if (several && next != operand.data() + operand.size() && *next == ':') {
    std::from_chars(next + 1, operand.data() + operand.size(), range.last);
  }
  return range.last >= range.first && range.last < kSgprs ? range : Range{};
}

int value(const MaskRegisters& masks, std::string_view operand) {
  if (operand == "-1") return ExecMasks::kAllLanes;
  if (operand == "0") return ExecMasks::kNone;
  const Range range = mask_registers(operand);
  return range.first < 0 ? ExecMasks::kUnknown : masks[static_cast<std::size_t>(range.first)];
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

void MaskSteps::step(const AmdInstruction& instruction, std::size_t number, MaskRegisters& masks) {
  const std::string_view name = instruction.name;
  const FirstOperands operands(instruction.operands);
  const auto condition = static_cast<int>(number);
  if (name.starts_with("v_cmpx_")) {
    if (pairs_) set(masks, operands.first, ExecMasks::kUnknown);  // gfx9 writes it, too
    masks[kExec] = part(masks, masks[kExec], condition);
  } else if (name.starts_with("v_cmp_")) {
    // 0 in lanes that are off.
    set(masks, operands.first, part(masks, masks[kExec], condition));
  } else if (name.starts_with("v_")) {
    // v_readlane, v_readfirstlane; carries, which are a second operand
    set(masks, operands.first, ExecMasks::kUnknown);
    if (contains(name, "_co_") || name.starts_with("v_div_scale"))
      set(masks, operands.second, ExecMasks::kUnknown);
  } else if (contains(name, "_saveexec_") || contains(name, "_wrexec_")) {
    save_exec(instruction, condition, masks);
  } else if (name.starts_with("s_") &&
             !begins_with_any(name, {"s_cmp", "s_bitcmp", "s_wait", "s_cbranch", "s_branch"})) {
    set(masks, operands.first, logic(instruction, condition, masks));
  }
}

void MaskSteps::save_exec(const AmdInstruction& instruction, int condition, MaskRegisters& masks) {
  const std::string_view name = instruction.name;
  const FirstOperands operands(instruction.operands);
  const int old = masks[kExec], source = value(masks, operands.second);
  int now = ExecMasks::kUnknown;
  if (name.starts_with("s_and_saveexec")) {
    now = both(masks, old, source, condition);
  } else if (name.starts_with("s_or_saveexec")) {
    now = names_.either(old, source);
  } else if (name.starts_with("s_xor_saveexec")) {
    now = names_.exclusive(old, source);
  } else if (name.starts_with("s_and_not1") || name.starts_with("s_andn2")) {
    now = without(masks, source, old, condition);
  } else if (name.starts_with("s_and_not0") || name.starts_with("s_andn1")) {
    now = without(masks, old, source, condition);
  }
  set(masks, operands.first, contains(name, "_wrexec_") ? now : old);
  masks[kExec] = now;
}

int MaskSteps::logic(const AmdInstruction& instruction, int condition, MaskRegisters& masks) {
  const std::string_view name = instruction.name;
  const FirstOperands operands(instruction.operands);
  if (pairs_ && !name.ends_with("_b64")) return ExecMasks::kUnknown;  // half of a mask
  const int a = value(masks, operands.second), b = value(masks, operands.third);
  if (name.starts_with("s_mov_b")) return a;
  if (name.starts_with("s_or_b")) return names_.either(a, b);
  if (name.starts_with("s_xor_b")) return names_.exclusive(a, b);
  if (name.starts_with("s_and_not1_b") || name.starts_with("s_andn2_b"))
    return without(masks, a, b, condition);
  return name.starts_with("s_and_b") ? both(masks, a, b, condition) : ExecMasks::kUnknown;
}

void MaskSteps::set(MaskRegisters& masks, std::string_view operand, int mask) const {
  const Range range = mask_registers(operand);
  if (range.first < 0) return;
  // The pair of 64 lanes that begins one register lower is overwritten in its upper half.
  const int begin =
      pairs_ && range.first > 0 && range.first < kSgprs ? range.first - 1 : range.first;
  for (int r = begin; r <= range.last; ++r)
    masks[static_cast<std::size_t>(r)] = ExecMasks::kUnknown;
  if (operand == "exec_hi") mask = ExecMasks::kUnknown;
  masks[static_cast<std::size_t>(range.first)] = mask;
}

// A part by a new value of the condition.
int MaskSteps::part(MaskRegisters& masks, int whole, int condition) {
  for (int& mask : masks) mask = names_.older(mask, condition);
  return names_.part(names_.older(whole, condition), condition, true);
}

// A result that is not known exactly still is a part of an operand.
int MaskSteps::both(MaskRegisters& masks, int a, int b, int condition) {
  const int mask = names_.both(a, b);
  return mask != ExecMasks::kUnknown ? mask
                                     : part(masks, a != ExecMasks::kUnknown ? a : b, condition);
}

int MaskSteps::without(MaskRegisters& masks, int a, int b, int condition) {
  const int mask = names_.without(a, b);
  return mask != ExecMasks::kUnknown ? mask : part(masks, a, condition);
}

}  // namespace fulmen::gpu
