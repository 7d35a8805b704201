#include "gpu/compile/amd_rules/kept_values.h"

#include <algorithm>

namespace fulmen::gpu {
namespace {

constexpr int kTracked = kScalarRegisters + kRegisters - kSlots, kNone = 0;

// Where a register's number stands; -1: vector registers have none.
int index_of(int r) {
  if (r >= 0 && r < kScalarRegisters) return r;
  return r >= kSlots && r < kRegisters ? kScalarRegisters + r - kSlots : -1;
}
// What instruction i gives a register; i + 1 is 0 for what is there when the kernel starts.
int number(std::size_t i_plus_1, int index) {
  return static_cast<int>(i_plus_1) * kTracked + index + 1;
}

using Numbers = std::vector<int>;

class Follow {
 public:
  Follow(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access,
         const SpillSlots& slots)
      : code_(code), access_(access), slots_(slots) {}

  // The registers a move reads and writes, as many of both; empty where i computes.
  struct Move {
    int from = -1, to = -1, count = 0;
  };
  Move move_of(std::size_t i) const {
    const AmdAccess& access = access_[i];
    if (slots_.is_store(i) && access.reads.size() == 1)
      return {access.reads[0].first, slots_.of(i), access.reads[0].count};
    if (access.writes.size() != 1) return {};
    if (slots_.is_load(i)) return {slots_.of(i), access.writes[0].first, 1};
    const bool moves = code_[i].name == "s_mov_b32" || code_[i].name == "s_mov_b64";
    if (!moves || access.reads.size() != 1 || access.reads[0].count != access.writes[0].count)
      return {};
    return {access.reads[0].first, access.writes[0].first, access.reads[0].count};
  }
  void name_at_branch(std::size_t i, Numbers& numbers) const {
    for (int n = 0; n < kTracked; ++n) {
      if (numbers[static_cast<std::size_t>(n)] == kNone) define(i, n, numbers);
    }
  }
  void operator()(Numbers& numbers, std::size_t i) const {
    if (code_[i].branches && code_[i].falls_through) return name_at_branch(i, numbers);
    if (const Move move = move_of(i); move.count > 0) {
      const Numbers before = numbers;
      for (int n = 0; n < move.count; ++n) {
        const int from = index_of(move.from + n), to = index_of(move.to + n);
        if (to >= 0)
          numbers[static_cast<std::size_t>(to)] =
              from < 0 ? kNone : before[static_cast<std::size_t>(from)];
      }
      return;
    }
    const bool stores = slots_.is_store(i);
    if (stores) define(i, index_of(slots_.of(i)), numbers);
    for (const RegisterRange& range : access_[i].writes) {
      for (int r = range.first; r < range.first + range.count; ++r) {
        if (index_of(r) >= 0) define(i, index_of(r), numbers);
      }
      if (!stores)
        slots_.for_each_lane(range, [&](int slot) { define(i, index_of(slot), numbers); });
    }
  }

 private:
  // Whoever has the number still has it from an earlier time that the instruction ran.
  static void define(std::size_t i, int index, Numbers& numbers) {
    const int given = number(i + 1, index);
    std::replace(numbers.begin(), numbers.end(), given, kNone);
    numbers[static_cast<std::size_t>(index)] = given;
  }
  const std::vector<AmdInstruction>& code_;
  const std::vector<AmdAccess>& access_;
  const SpillSlots& slots_;
};

}  // namespace

KeptValues::KeptValues(const std::vector<AmdInstruction>& code,
                       const std::vector<AmdAccess>& access, const SpillSlots& slots,
                       const AmdFlow& blocks)
    : at_(code.size()) {
  Numbers entry(kTracked);
  for (int n = 0; n < kTracked; ++n) entry[static_cast<std::size_t>(n)] = number(0, n);
  const Follow follow(code, access, slots);
  const auto before = states_before_blocks(
      blocks, entry, follow, [](Numbers&, const AmdEdge&) {},
      [](Numbers& numbers, const Numbers& other) {
        bool changed = false;
        for (std::size_t n = 0; n < numbers.size(); ++n) {
          if (numbers[n] == other[n] || numbers[n] == kNone) continue;
          numbers[n] = kNone;
          changed = true;
        }
        return changed;
      });
  visit_instructions(blocks, before, [&](Numbers& numbers, std::size_t i) {
    follow(numbers, i);
    if ((code[i].branches && code[i].falls_through) || follow.move_of(i).count > 0)
      at_[i] = numbers;
  });
}

std::optional<std::size_t> KeptValues::restored(std::size_t i, int r, std::size_t branch) const {
  const int index = index_of(r);
  if (index < 0 || at_[i].empty() || at_[branch].empty()) return std::nullopt;
  const int now = at_[i][static_cast<std::size_t>(index)];
  if (now == kNone || now != at_[branch][static_cast<std::size_t>(index)]) return std::nullopt;
  return static_cast<std::size_t>((now - 1) / kTracked) - 1;  // kNowhere for 0 - 1
}

}  // namespace fulmen::gpu
