#include "gpu/compile/amd_rules/flow.h"

namespace fulmen::gpu {

AmdFlow::AmdFlow(const std::vector<AmdInstruction>& code) {
  std::set<std::size_t> begins;
  if (!code.empty()) begins.insert(0);
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].branches && code[i].target != AmdInstruction::kNowhere) begins.insert(code[i].target);
    if ((code[i].branches || !code[i].falls_through) && i + 1 < code.size()) begins.insert(i + 1);
  }
  std::vector<std::size_t> block_of(code.size());
  for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
    const auto next = std::next(begin);
    const std::size_t end = next == begins.end() ? code.size() : *next;
    for (std::size_t i = *begin; i < end; ++i) block_of[i] = blocks_.size();
    blocks_.push_back({*begin, end, {}});
  }
  find_edges(code, block_of);
}

void AmdFlow::find_edges(const std::vector<AmdInstruction>& code, const std::vector<std::size_t>& block_of) {
  for (AmdBlock& block : blocks_) {
    const AmdInstruction& last = code[block.end - 1];
    if (last.falls_through && block.end < code.size()) {
      block.next.push_back({block_of[block.end], last.name == "s_cbranch_execnz"});
    }
    if (last.branches && last.target != AmdInstruction::kNowhere) {
      block.next.push_back({block_of[last.target], last.name == "s_cbranch_execz"});
    }
  }
  // Only where the other way comes there, too.
  for (AmdBlock& block : blocks_) {
    for (std::size_t i = 0; i < block.next.size(); ++i) {
      AmdEdge& edge = block.next[i];
      if (!edge.without_lanes) continue;
      const bool has_other = block.next.size() == 2 && block.next[1 - i].to != edge.to;
      edge.without_lanes = has_other && reachable_from(block.next[1 - i].to, AmdInstruction::kNowhere)[edge.to];
    }
  }
}

// Includes the block itself, unless it is the barred one.
std::vector<bool> AmdFlow::reachable_from(std::size_t block, std::size_t barred) const {
  std::vector<bool> reached(blocks_.size(), false);
  std::vector<std::size_t> waiting;
  const auto arrive = [&](std::size_t at) {
    if (at == barred || reached[at]) return;
    reached[at] = true;
    waiting.push_back(at);
  };
  arrive(block);
  while (!waiting.empty()) {
    const std::size_t at = waiting.back();
    waiting.pop_back();
    for (const AmdEdge& edge : blocks_[at].next) arrive(edge.to);
  }
  return reached;
}

std::vector<std::size_t> AmdFlow::blocks_until_ways_meet(std::size_t block) const {
  // A place is where the ways meet if without it no way from the branch ends: not at an end of the kernel,
  // and not at the branch again.
  const auto between = [&](std::size_t meeting) {
    std::vector<bool> region(blocks_.size(), false);
    for (const AmdEdge& edge : blocks_[block].next) {
      const std::vector<bool> reached = reachable_from(edge.to, meeting);
      for (std::size_t b = 0; b < region.size(); ++b) region[b] = region[b] || reached[b];
    }
    return region;
  };
  const auto size_of = [](const std::vector<bool>& region) {
    std::vector<std::size_t> list;
    for (std::size_t b = 0; b < region.size(); ++b) {
      if (region[b]) list.push_back(b);
    }
    return list;
  };
  std::vector<std::size_t> best = size_of(between(AmdInstruction::kNowhere));
  for (std::size_t meeting = 0; meeting < blocks_.size(); ++meeting) {
    if (meeting == block) continue;
    const std::vector<bool> region = between(meeting);
    bool ends = false;
    for (std::size_t b = 0; b < region.size() && !ends; ++b) ends = region[b] && blocks_[b].next.empty();
    if (ends) continue;
    std::vector<std::size_t> list = size_of(region);
    if (list.size() < best.size()) best = std::move(list);
  }
  return best;
}

}  // namespace fulmen::gpu
