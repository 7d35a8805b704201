#include "gpu/compile/amd_rules/flow.h"

#include <algorithm>

namespace fulmen::gpu {

AmdFlow::AmdFlow(const std::vector<AmdInstruction>& code) {
  std::set<std::size_t> begins;
  if (!code.empty()) begins.insert(0);
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].branches && code[i].target != AmdInstruction::kNowhere)
      begins.insert(code[i].target);
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

void AmdFlow::find_edges(const std::vector<AmdInstruction>& code,
                         const std::vector<std::size_t>& block_of) {
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
      edge.without_lanes = has_other && reachable_from(block.next[1 - i].to)[edge.to];
    }
  }
}

// Includes the block itself.
std::vector<bool> AmdFlow::reachable_from(std::size_t block) const {
  std::vector<bool> reached(blocks_.size(), false);
  std::vector<std::size_t> waiting;
  const auto arrive = [&](std::size_t at) {
    if (reached[at]) return;
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

std::vector<std::size_t> AmdFlow::way_to_end(std::size_t block) const {
  std::vector<std::size_t> from(blocks_.size(), AmdInstruction::kNowhere), waiting{block};
  for (std::size_t n = 0; n < waiting.size(); ++n) {
    const std::size_t at = waiting[n];
    if (blocks_[at].next.empty()) {
      std::vector<std::size_t> way;
      for (std::size_t b = at; b != block; b = from[b]) way.push_back(b);
      std::reverse(way.begin(), way.end());
      return way;
    }
    for (const AmdEdge& edge : blocks_[at].next) {
      if (edge.to == block || from[edge.to] != AmdInstruction::kNowhere) continue;
      from[edge.to] = at;
      waiting.push_back(edge.to);
    }
  }
  return {};
}

std::vector<std::size_t> AmdFlow::blocks_before_post_dominator(std::size_t block) const {
  // A post-dominator is a block without which no way from the branch ends. It is on every such way,
  // the immediate one first.
  const auto reachable_without = [&](std::size_t barred) {
    std::vector<bool> reached(blocks_.size(), false);
    std::vector<std::size_t> region;
    const auto arrive = [&](std::size_t from) {
      for (const AmdEdge& edge : blocks_[from].next) {
        if (edge.to == barred || reached[edge.to]) continue;
        reached[edge.to] = true;
        region.push_back(edge.to);
      }
    };
    arrive(block);
    for (std::size_t n = 0; n < region.size(); ++n) arrive(region[n]);
    return region;
  };
  const auto ends = [&](std::size_t b) { return blocks_[b].next.empty(); };
  for (const std::size_t candidate : way_to_end(block)) {
    std::vector<std::size_t> region = reachable_without(candidate);
    if (std::none_of(region.begin(), region.end(), ends)) return region;
  }
  return reachable_without(AmdInstruction::kNowhere);
}

}  // namespace fulmen::gpu
