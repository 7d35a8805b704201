#include "gpu/compile/amd_rules/spill_slots.h"

#include <charconv>
#include <map>
#include <string_view>
#include <utility>

namespace fulmen::gpu {
namespace {

int constant_lane(std::string_view operands) {
  take_operand(operands);
  take_operand(operands);
  const std::string_view text = take_operand(operands);
  int lane = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), lane);
  return error == std::errc() && end == text.data() + text.size() ? lane : -1;
}

}  // namespace

SpillSlots::SpillSlots(const std::vector<AmdInstruction>& code,
                       const std::vector<AmdAccess>& access)
    : slot_of_(code.size(), -1), stores_(code.size(), false), of_register_(kSlots - kVectors) {
  std::map<std::pair<int, int>, int> numbers;  // by vector register and lane
  for (std::size_t i = 0; i < code.size(); ++i) {
    stores_[i] = code[i].name.starts_with("v_writelane_b32");
    if (!stores_[i] && !code[i].name.starts_with("v_readlane_b32")) continue;
    const std::vector<RegisterRange>& vectors = stores_[i] ? access[i].writes : access[i].reads;
    const int lane = constant_lane(code[i].operands);
    if (lane < 0 || vectors.empty() || !vectors.front().is_vector()) continue;
    const int next = kSlots + static_cast<int>(numbers.size());
    if (next >= kRegisters) return;
    const auto [found, added] = numbers.try_emplace({vectors.front().first, lane}, next);
    slot_of_[i] = found->second;
    if (added)
      of_register_[static_cast<std::size_t>(vectors.front().first - kVectors)].push_back(next);
  }
}

}  // namespace fulmen::gpu
