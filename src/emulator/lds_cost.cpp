#include "emulator/lds_cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace fulmen::gpu {
namespace {

constexpr std::size_t kMostBanks = 64, kMostLanes = 64;
constexpr int kCycleBanks = 32;                     // 128 bytes a cycle
constexpr std::size_t kMostWords = 2 * kMostLanes;  // two of a lane where 4 bytes are not aligned

// How often one group of lanes is served: the most different words in one bank.
int64_t turns_of(std::span<const int> offsets, int done, int bytes, int banks) {
  std::array<std::array<int, kMostWords>, kMostBanks> words;
  std::array<std::size_t, kMostBanks> count{};
  std::size_t turns = 0;
  for (const int offset : offsets) {
    if (offset == kNoAccess) continue;
    const int first = offset + done;
    for (int word = first / 4; word < (first + bytes + 3) / 4; ++word) {
      const auto bank = static_cast<std::size_t>(word % banks);
      int* const end = words[bank].data() + count[bank];
      if (std::find(words[bank].data(), end, word) != end) continue;
      *end = word;
      turns = std::max(turns, ++count[bank]);
    }
  }
  return static_cast<int64_t>(turns);
}

// The lanes in the order in which 16-byte reads are served.
void interleave(std::span<int> offsets) {
  std::array<int, kMostLanes> order;
  std::size_t placed = 0;
  for (const bool first : {true, false}) {
    for (std::size_t lane = 0; lane < offsets.size(); ++lane) {
      const std::size_t four = lane % 32 / 4;
      const bool early = four == 0 || four == 3 || four == 5 || four == 6;
      if (early == first) order[placed++] = offsets[lane];
    }
  }
  std::copy_n(order.begin(), placed, offsets.begin());
}

}  // namespace

LdsCost cost_of(std::span<const int> offsets, int bytes, const LdsReads& reads) {
  const bool whole = std::all_of(offsets.begin(), offsets.end(),
                                 [](int o) { return o == kNoAccess || o % 16 == 0; });
  const int piece = std::min(bytes, bytes >= 16 && !whole ? 8 : 16);
  const auto together = static_cast<std::size_t>(4 * reads.banks) /
                        std::bit_ceil(static_cast<unsigned>(std::max(piece, 4)));
  std::array<int, kMostLanes> storage;
  const std::span at = std::span(storage).first(std::min(offsets.size(), kMostLanes));
  std::copy_n(offsets.begin(), at.size(), at.begin());
  if (reads.interleaves && piece > 8) interleave(at);
  const int64_t cycles = reads.banks / kCycleBanks;
  LdsCost cost{};
  for (int done = 0; done < bytes; done += piece) {
    ++cost.instructions;
    for (std::size_t lane = 0; lane < at.size(); lane += together) {
      const int64_t turns = turns_of(at.subspan(lane, std::min(together, at.size() - lane)), done,
                                     piece, reads.banks);
      cost.cycles += turns * cycles;
      cost.conflicts += std::max<int64_t>(turns - 1, 0) * cycles;
    }
  }
  return cost;
}

}  // namespace fulmen::gpu
