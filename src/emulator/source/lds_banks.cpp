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

constexpr int kBanks = 32;

// The cycles of one group of lanes: the most different words in one bank.
int64_t cycles_of(std::span<const int> offsets, int bytes) {
  std::array<std::vector<int>, kBanks> words;
  std::size_t cycles = 0;
  for (const int offset : offsets) {
    if (offset == kNoAccess) continue;
    for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
      std::vector<int>& bank = words[static_cast<std::size_t>(word % kBanks)];
      if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
      cycles = std::max(cycles, bank.size());
    }
  }
  return static_cast<int64_t>(cycles);
}

std::atomic<LdsBankCount*> newest{nullptr};

}  // namespace

LdsLine cost_of(std::span<const int> offsets, int bytes) {
  const bool whole = std::all_of(offsets.begin(), offsets.end(),
                                 [](int o) { return o == kNoAccess || o % 16 == 0; });
  const int piece = std::min(bytes, bytes >= 16 && !whole ? 8 : 16);
  const auto together = static_cast<std::size_t>(4 * kBanks) /
                        std::bit_ceil(static_cast<unsigned>(std::max(piece, 4)));
  LdsLine cost{};
  for (int done = 0; done < bytes; done += piece) {
    ++cost.instructions;
    std::vector<int> at(offsets.begin(), offsets.end());
    for (int& offset : at) {
      if (offset != kNoAccess) offset += done;
    }
    for (std::size_t lane = 0; lane < at.size(); lane += together) {
      const int64_t cycles =
          cycles_of(std::span(at).subspan(lane, std::min(together, at.size() - lane)), piece);
      cost.cycles += cycles;
      cost.conflicts += std::max<int64_t>(cycles - 1, 0);
    }
  }
  return cost;
}

void LdsBanks::count(std::span<const std::vector<LdsAccess>> lanes) {
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
    const LdsLine cost = cost_of(offsets, std::get<3>(key.first));
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
