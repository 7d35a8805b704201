#include "emulator/source/lds_banks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace fulmen::gpu::emulated {
namespace {

std::atomic<LdsBankCount*> newest{nullptr};

}  // namespace

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
    lines_[key.first] += cost_of(offsets, std::get<3>(key.first), writes ? LdsReads{} : reads);
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
  std::vector<std::pair<Line, LdsCost>> sorted(lines_.begin(), lines_.end());
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
