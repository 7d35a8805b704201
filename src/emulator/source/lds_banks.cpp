#include "emulator/source/lds_banks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>

namespace fulmen::gpu::emulated {
namespace {

// 128 bytes a cycle.
constexpr int kCycleBanks = 32, kMostBanks = 64;

// How often one group of lanes is served: the most different words in one bank.
int64_t turns_of(std::span<const int> offsets, int bytes, int banks) {
  std::array<std::vector<int>, kMostBanks> words;
  std::size_t cycles = 0;
  for (const int offset : offsets) {
    if (offset == kNoAccess) continue;
    for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
      std::vector<int>& bank = words[static_cast<std::size_t>(word % banks)];
      if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
      cycles = std::max(cycles, bank.size());
    }
  }
  return static_cast<int64_t>(cycles);
}

// The lanes in the order in which 16-byte reads are served.
std::vector<int> interleaved(std::span<const int> offsets) {
  std::vector<int> order;
  for (const bool first : {true, false}) {
    for (std::size_t lane = 0; lane < offsets.size(); ++lane) {
      const std::size_t four = lane % 32 / 4;
      const bool early = four == 0 || four == 3 || four == 5 || four == 6;
      if (early == first) order.push_back(offsets[lane]);
    }
  }
  return order;
}

std::atomic<LdsBankCount*> newest{nullptr};

}  // namespace

LdsLine cost_of(std::span<const int> offsets, int bytes, const LdsReads& reads) {
  const bool whole = std::all_of(offsets.begin(), offsets.end(),
                                 [](int o) { return o == kNoAccess || o % 16 == 0; });
  const int piece = std::min(bytes, bytes >= 16 && !whole ? 8 : 16);
  const auto together = static_cast<std::size_t>(4 * reads.banks) /
                        std::bit_ceil(static_cast<unsigned>(std::max(piece, 4)));
  LdsLine cost{};
  for (int done = 0; done < bytes; done += piece) {
    ++cost.instructions;
    std::vector<int> at(offsets.begin(), offsets.end());
    for (int& offset : at) {
      if (offset != kNoAccess) offset += done;
    }
    if (reads.interleaves && piece > 8) at = interleaved(at);
    const int64_t cycles = reads.banks / kCycleBanks;
    for (std::size_t lane = 0; lane < at.size(); lane += together) {
      const int64_t turns = turns_of(
          std::span(at).subspan(lane, std::min(together, at.size() - lane)), piece, reads.banks);
      cost.cycles += turns * cycles;
      cost.conflicts += std::max<int64_t>(turns - 1, 0) * cycles;
    }
  }
  return cost;
}

void LdsBanks::count(std::span<const std::vector<LdsAccess>> lanes, const LdsReads& reads) {
  // A line's nth access of every lane.
  std::map<std::pair<Line, int>, std::vector<int>> instructions;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    std::map<Line, int> seen;
    for (const LdsAccess& access : lanes[lane]) {
      Line line{access.site.file, access.site.line, access.write, access.bytes};
      const int nth = seen[line]++;
      std::vector<int>& offsets = instructions[{std::move(line), nth}];
      offsets.resize(lanes.size(), kNoAccess);
      offsets[lane] = access.offset;
    }
  }
  for (const auto& [key, offsets] : instructions) {
    const bool writes = std::get<2>(key.first);
    const LdsLine cost = cost_of(offsets, std::get<3>(key.first), writes ? LdsReads{} : reads);
    LdsLine& line = lines_[key.first];
    line.instructions += cost.instructions;
    line.cycles += cost.cycles;
    line.conflicts += cost.conflicts;
  }
}

int64_t LdsBanks::conflicts() const {
  int64_t sum = 0;
  for (const auto& [line, cost] : lines_) sum += cost.conflicts;
  return sum;
}

int64_t LdsBanks::cycles() const {
  int64_t sum = 0;
  for (const auto& [line, cost] : lines_) sum += cost.cycles;
  return sum;
}

std::string LdsBanks::report() const {
  std::vector<std::pair<Line, LdsLine>> sorted(lines_.begin(), lines_.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.second.conflicts, a.first) < std::tuple(-b.second.conflicts, b.first);
  });
  std::string text;
  for (const auto& [line, cost] : sorted) {
    const auto& [file, number, write, bytes] = line;
    text += fmt::format("{}:{} {} {} bytes: {} instructions, {} cycles, {} conflicts\n", file,
                        number, write ? "writes" : "reads", bytes, cost.instructions, cost.cycles,
                        cost.conflicts);
  }
  return text;
}

LdsBankCount::LdsBankCount() : outer_(newest.exchange(this)) {}
LdsBankCount::~LdsBankCount() { newest = outer_; }
LdsBanks* LdsBankCount::active() noexcept {
  LdsBankCount* const count = newest;
  return count == nullptr ? nullptr : &count->banks_;
}

}  // namespace fulmen::gpu::emulated
