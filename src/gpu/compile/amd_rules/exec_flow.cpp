#include "gpu/compile/amd_rules/exec_flow.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

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
  const auto [next, error] =
      std::from_chars(operand.data(), operand.data() + operand.size(), range.first);
  if (error != std::errc() || range.first >= kSgprs) return {};
  range.last = range.first;
  if (several && next != operand.data() + operand.size() && *next == ':') {
    std::from_chars(next + 1, operand.data() + operand.size(), range.last);
  }
  return range.last >= range.first && range.last < kSgprs ? range : Range{};
}

// What each instruction makes of the masks.
class Follower {
 public:
  explicit Follower(bool pairs) : pairs_(pairs) {}

  void step(const AmdInstruction& instruction, std::size_t number, MaskRegisters& masks) {
    const std::string_view name = instruction.name;
    std::string_view rest = instruction.operands;
    const std::string_view first = take_operand(rest), second = take_operand(rest),
                           third = take_operand(rest);
    const auto condition = static_cast<int>(number);
    int& exec = masks[kExec];
    if (name.starts_with("v_cmpx_")) {
      exec = masks_.part(exec, condition, true);
    } else if (name.starts_with("v_cmp_")) {
      set(masks, first, masks_.part(exec, condition, true));  // 0 in lanes that are off
    } else if (name.starts_with("v_")) {
      // v_readlane, v_readfirstlane; carries, which are a second operand
      set(masks, first, ExecMasks::kUnknown);
      if (name.find("_co_") != std::string_view::npos || name.starts_with("v_div_scale"))
        set(masks, second, ExecMasks::kUnknown);
    } else if (name.find("_saveexec_") != std::string_view::npos ||
               name.find("_wrexec_") != std::string_view::npos) {
      const int old = exec, source = value(masks, second);
      const int now = name.starts_with("s_and_saveexec")   ? smaller(old, source, condition)
                      : name.starts_with("s_or_saveexec")  ? masks_.turned_on(old, source)
                      : name.starts_with("s_xor_saveexec") ? masks_.exclusive(old, source)
                      : name.starts_with("s_and_not1") || name.starts_with("s_andn2")
                          ? masks_.without(source, old)
                      : name.starts_with("s_and_not0") || name.starts_with("s_andn1")
                          ? masks_.without(old, source)
                          : ExecMasks::kUnknown;
      set(masks, first, name.find("_wrexec_") == std::string_view::npos ? old : now);
      exec = now;
    } else if (name.starts_with("s_") &&
               !begins_with_any(name, {"s_cmp_", "s_bitcmp", "s_wait", "s_cbranch", "s_branch"})) {
      const bool to_exec = mask_registers(first).first == kExec;
      const bool zero = name.starts_with("s_mov_b") && second == "0" && !to_exec;
      set(masks, first,
          zero ? ExecMasks::left_of(exec)
               : scalar(name, value(masks, second), value(masks, third), to_exec, condition));
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
    const int begin =
        pairs_ && range.first > 0 && range.first < kSgprs ? range.first - 1 : range.first;
    for (int r = begin; r <= range.last; ++r)
      masks[static_cast<std::size_t>(r)] = ExecMasks::kUnknown;
    if (operand.ends_with("_hi")) mask = ExecMasks::kUnknown;
    masks[static_cast<std::size_t>(range.first)] = mask;
  }
  // The lanes of two masks: one of them where it is a part of the other, else a part of one that is
  // known.
  int smaller(int a, int b, int condition) {
    const int mask = masks_.both(a, b);
    return mask != ExecMasks::kUnknown
               ? mask
               : masks_.part(a > ExecMasks::kUnknown ? a : b, condition, true);
  }
  int scalar(std::string_view name, int a, int b, bool to_exec, int condition) {
    if (name.starts_with("s_mov_b")) return a;
    if (name.starts_with("s_or_b")) return to_exec ? masks_.turned_on(a, b) : masks_.either(a, b);
    if (name.starts_with("s_xor_b")) return masks_.exclusive(a, b);
    if (name.starts_with("s_and_not1_b") || name.starts_with("s_andn2_b"))
      return masks_.without(a, b);
    return name.starts_with("s_and_b") ? smaller(a, b, condition) : ExecMasks::kUnknown;
  }

  ExecMasks masks_;
  bool pairs_;
};

// The masks before each block. A name says what instruction made a mask, so that one that was all
// lanes may have a name once another way is known: where ways meet, what they say now counts, and
// not what they said before. A block that is made anew often keeps to what all its ways ever agreed
// on, so that this ends. Either way a state holds where each way to its block says so.
template <class Step>
std::vector<std::optional<MaskRegisters>> masks_before_blocks(const AmdFlow& flow,
                                                              const MaskRegisters& entry,
                                                              Step step) {
  constexpr int kAnew = 16;
  const std::vector<AmdBlock>& blocks = flow.blocks();
  std::vector<std::optional<MaskRegisters>> before(blocks.size()), after(blocks.size());
  std::vector<std::vector<std::size_t>> from(blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const AmdEdge& edge : blocks[b].next) from[edge.to].push_back(b);
  }
  std::vector<int> times(blocks.size(), 0);
  std::set<std::size_t> waiting;
  if (!blocks.empty()) waiting.insert(0);
  while (!waiting.empty()) {
    const std::size_t b = *waiting.begin();
    waiting.erase(waiting.begin());
    std::optional<MaskRegisters> now;
    const auto meet = [&now](const std::optional<MaskRegisters>& other) {
      if (!other) return;
      if (now) Follower::meet(*now, *other);
      if (!now) now = other;
    };
    if (b == 0) meet(entry);
    for (const std::size_t way : from[b]) meet(after[way]);
    if (++times[b] > kAnew) meet(before[b]);
    if (now == before[b]) continue;
    before[b] = now;
    for (std::size_t i = blocks[b].begin; i < blocks[b].end; ++i) step(*now, i);
    after[b] = now;
    for (const AmdEdge& edge : blocks[b].next) waiting.insert(edge.to);
  }
  return before;
}

}  // namespace

bool has_64_lanes(const std::vector<AmdInstruction>& code) {
  return std::any_of(code.begin(), code.end(), [](const AmdInstruction& instruction) {
    const std::size_t at = instruction.operands.find("exec");
    return at != std::string_view::npos && !instruction.operands.substr(at).starts_with("exec_");
  });
}

std::vector<int> exec_before_instructions(const std::vector<AmdInstruction>& code,
                                          const AmdFlow& flow) {
  MaskRegisters entry;
  entry.fill(ExecMasks::kUnknown);
  entry[kExec] = ExecMasks::kAllLanes;
  Follower follower(has_64_lanes(code));
  const auto step = [&](MaskRegisters& masks, std::size_t i) { follower.step(code[i], i, masks); };
  const auto before = masks_before_blocks(flow, entry, step);
  std::vector<int> exec(code.size(), kNeverReached);
  visit_instructions(flow, before, [&](MaskRegisters& masks, std::size_t i) {
    // A block may be there more than once (path_facts.h).
    exec[i] =
        exec[i] == kNeverReached || exec[i] == masks[kExec] ? masks[kExec] : ExecMasks::kUnknown;
    step(masks, i);
  });
  return exec;
}

}  // namespace fulmen::gpu
