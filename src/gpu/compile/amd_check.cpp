#include "gpu/compile/amd_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "gpu/compile/amd_disassembly.h"
#include "gpu/compile/disassembly_line.h"
#include "gpu/compile/exec_masks.h"

namespace fulmen::gpu {
namespace {

// The next operand of "s[0:1], vcc, v0 op_sel:[1,0]": up to a comma outside of brackets.
std::string_view take_operand(std::string_view& operands) {
  std::size_t end = 0;
  for (int depth = 0; end < operands.size() && (operands[end] != ',' || depth > 0); ++end) {
    depth += operands[end] == '[' ? 1 : operands[end] == ']' ? -1 : 0;
  }
  const std::string_view operand = trimmed(operands.substr(0, end));
  operands.remove_prefix(end == operands.size() ? end : end + 1);
  return operand;
}

struct Range {
  int first = -1, last = -1;  // of mask registers; -1: none
};

// "s3", "s[4:7]", "vcc", "vcc_lo", "exec", "exec_lo".
Range mask_registers(std::string_view operand) {
  if (operand.starts_with("vcc")) return {kVcc, kVcc};
  if (operand.starts_with("exec")) return {kExec, kExec};
  if (!operand.starts_with('s') || operand.size() < 2) return {};
  operand.remove_prefix(1);
  const bool several = operand.front() == '[';
  if (several) operand.remove_prefix(1);
  Range range;
  const auto [next, error] = std::from_chars(operand.data(), operand.data() + operand.size(), range.first);
  if (error != std::errc() || range.first >= kSgprs) return {};
  range.last = range.first;
  if (several && next != operand.data() + operand.size() && *next == ':') {
    std::from_chars(next + 1, operand.data() + operand.size(), range.last);
  }
  return range.last >= range.first && range.last < kSgprs ? range : Range{};
}

// Masks of 64 lanes are in pairs of registers; code for waves of 32 lanes names the lower half of EXEC alone.
bool has_64_lanes(const std::vector<AmdInstruction>& code) {
  return std::any_of(code.begin(), code.end(), [](const AmdInstruction& instruction) {
    const std::size_t at = instruction.operands.find("exec");
    return at != std::string_view::npos && !instruction.operands.substr(at).starts_with("exec_");
  });
}

// What each instruction makes of the masks.
class Follower {
 public:
  explicit Follower(bool pairs) : pairs_(pairs) {}

  void step(const AmdInstruction& instruction, std::size_t number, MaskRegisters& masks) {
    const std::string_view name = instruction.name;
    std::string_view rest = instruction.operands;
    const std::string_view first = take_operand(rest), second = take_operand(rest), third = take_operand(rest);
    const auto condition = static_cast<int>(number);
    int& exec = masks[kExec];
    if (name.starts_with("v_cmpx_")) {
      exec = masks_.part(exec, condition, true);
    } else if (name.starts_with("v_cmp_")) {
      set(masks, first, masks_.part(exec, condition, true));  // 0 in lanes that are off
    } else if (name.starts_with("v_")) {
      // v_readlane, v_readfirstlane; carries, which are a second operand
      set(masks, first, ExecMasks::kUnknown);
      if (name.find("_co_") != std::string_view::npos || name.starts_with("v_div_scale")) set(masks, second, ExecMasks::kUnknown);
    } else if (name.find("_saveexec_") != std::string_view::npos || name.find("_wrexec_") != std::string_view::npos) {
      const int old = exec, source = value(masks, second);
      const int now = name.starts_with("s_and_saveexec")                              ? masks_.part(old, condition, true)
                      : name.starts_with("s_or_saveexec")                             ? masks_.turned_on(old, source)
                      : name.starts_with("s_xor_saveexec")                            ? masks_.exclusive(old, source)
                      : name.starts_with("s_and_not1") || name.starts_with("s_andn2") ? masks_.without(source, old)
                      : name.starts_with("s_and_not0") || name.starts_with("s_andn1") ? masks_.without(old, source)
                                                                                      : ExecMasks::kUnknown;
      set(masks, first, name.find("_wrexec_") == std::string_view::npos ? old : now);
      exec = now;
    } else if (name.starts_with("s_") && !begins_with_any(name, {"s_cmp_", "s_bitcmp", "s_wait", "s_cbranch", "s_branch"})) {
      const int to_exec = mask_registers(first).first == kExec ? condition : -1;
      const bool zero = name.starts_with("s_mov_b") && second == "0" && to_exec < 0;
      set(masks, first, zero ? ExecMasks::left_of(exec) : scalar(name, value(masks, second), value(masks, third), to_exec));
    }
  }

  // A mask that two ways to an instruction agree on.
  static bool meet(MaskRegisters& masks, const MaskRegisters& more) {
    bool changed = false;
    for (std::size_t r = 0; r < masks.size(); ++r) {
      if (masks[r] == more[r] || masks[r] == ExecMasks::kUnknown) continue;
      masks[r] = ExecMasks::kUnknown;
      changed = true;
    }
    return changed;
  }

 private:
  static int value(const MaskRegisters& masks, std::string_view operand) {
    if (operand == "-1") return ExecMasks::kAllLanes;
    const Range range = mask_registers(operand);
    return range.first < 0 ? ExecMasks::kUnknown : masks[static_cast<std::size_t>(range.first)];
  }
  void set(MaskRegisters& masks, std::string_view operand, int mask) const {
    const Range range = mask_registers(operand);
    if (range.first < 0) return;
    // The pair of 64 lanes that begins one register lower is overwritten in its upper half.
    const int begin = pairs_ && range.first > 0 && range.first < kSgprs ? range.first - 1 : range.first;
    for (int r = begin; r <= range.last; ++r) masks[static_cast<std::size_t>(r)] = ExecMasks::kUnknown;
    if (operand.ends_with("_hi")) mask = ExecMasks::kUnknown;
    masks[static_cast<std::size_t>(range.first)] = mask;
  }
  int scalar(std::string_view name, int a, int b, int condition_of_exec) {
    if (name.starts_with("s_mov_b")) return a;
    if (name.starts_with("s_or_b")) return condition_of_exec < 0 ? masks_.either(a, b) : masks_.turned_on(a, b);
    if (name.starts_with("s_xor_b")) return masks_.exclusive(a, b);
    if (name.starts_with("s_and_not1_b") || name.starts_with("s_andn2_b")) return masks_.without(a, b);
    if (!name.starts_with("s_and_b")) return ExecMasks::kUnknown;
    if (condition_of_exec < 0) return masks_.both(a, b);
    return masks_.part(a > ExecMasks::kUnknown ? a : b, condition_of_exec, true);
  }

  ExecMasks masks_;
  bool pairs_;
};

bool reads_lanes_that_are_on(const AmdInstruction& instruction) {
  const std::string_view name = instruction.name;
  if (name.starts_with("v_permlane")) return instruction.operands.find("op_sel:[1,") == std::string_view::npos;
  if (begins_with_any(name, {"ds_bpermute_", "ds_permute_", "ds_swizzle_"})) return true;
  if (name.find("_dpp") == std::string_view::npos) return false;
  return instruction.operands.find("fi:1") == std::string_view::npos;
}

}  // namespace

std::vector<std::string> cross_lane_findings(std::string_view disassembly) {
  const std::vector<AmdInstruction> code = read_amd_disassembly(disassembly);
  std::vector<MaskRegisters> before(code.size());
  std::vector<bool> reached(code.size(), false);
  std::vector<std::size_t> waiting;
  const auto arrive = [&](std::size_t at, const MaskRegisters& masks) {
    if (at >= code.size()) return;
    if (!reached[at]) {
      reached[at] = true;
      before[at] = masks;
    } else if (!Follower::meet(before[at], masks)) {
      return;
    }
    waiting.push_back(at);
  };
  MaskRegisters entry;
  entry.fill(ExecMasks::kUnknown);
  entry[kExec] = ExecMasks::kAllLanes;
  arrive(0, entry);
  Follower follower(has_64_lanes(code));
  while (!waiting.empty()) {
    const std::size_t at = waiting.back();
    waiting.pop_back();
    MaskRegisters masks = before[at];
    follower.step(code[at], at, masks);
    if (code[at].branches) arrive(code[at].target, masks);
    if (code[at].falls_through) arrive(at + 1, masks);
  }
  std::vector<std::string> findings;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (!reached[i] || before[i][kExec] == ExecMasks::kAllLanes || !reads_lanes_that_are_on(code[i])) continue;
    findings.push_back(fmt::format("{} {} at address {:#x} reads other lanes where these may be off", code[i].name,
                                   code[i].operands, code[i].address));
  }
  return findings;
}

}  // namespace fulmen::gpu
