#include "emulator/lds_cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace fulmen::gpu {
namespace {

constexpr int kBanks = 32;
constexpr std::size_t kMostWords = 64;  // of one group of lanes, two words at most where 4 bytes
                                        // are not aligned

// The cycles of one group of lanes: the most different words in one bank.
int64_t cycles_of(std::span<const int> offsets, int done, int bytes) {
  std::array<std::array<int, kMostWords>, kBanks> words;
  std::array<std::size_t, kBanks> count{};
  std::size_t cycles = 0;
  for (const int offset : offsets) {
    if (offset == kNoAccess) continue;
    const int first = offset + done;
    for (int word = first / 4; word < (first + bytes + 3) / 4; ++word) {
      const auto bank = static_cast<std::size_t>(word % kBanks);
      int* const end = words[bank].data() + count[bank];
      if (std::find(words[bank].data(), end, word) != end) continue;
      *end = word;
      cycles = std::max(cycles, ++count[bank]);
    }
  }
  return static_cast<int64_t>(cycles);
}

}  // namespace

LdsCost cost_of(std::span<const int> offsets, int bytes) {
  const bool whole = std::all_of(offsets.begin(), offsets.end(),
                                 [](int o) { return o == kNoAccess || o % 16 == 0; });
  const int piece = std::min(bytes, bytes >= 16 && !whole ? 8 : 16);
  const auto together = static_cast<std::size_t>(4 * kBanks) /
                        std::bit_ceil(static_cast<unsigned>(std::max(piece, 4)));
  LdsCost cost{};
  for (int done = 0; done < bytes; done += piece) {
    ++cost.instructions;
    for (std::size_t lane = 0; lane < offsets.size(); lane += together) {
      const int64_t cycles = cycles_of(
          offsets.subspan(lane, std::min(together, offsets.size() - lane)), done, piece);
      cost.cycles += cycles;
      cost.conflicts += std::max<int64_t>(cycles - 1, 0);
    }
  }
  return cost;
}

}  // namespace fulmen::gpu
