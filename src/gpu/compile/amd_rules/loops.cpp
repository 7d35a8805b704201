#include "gpu/compile/amd_rules/loops.h"

#include <algorithm>
#include <utility>

namespace fulmen::gpu {

AmdLoops::AmdLoops(const AmdFlow& flow)
    : position_(flow.blocks().size()), from_(flow.blocks().size()) {
  if (flow.blocks().empty()) return;
  std::vector<bool> seen(flow.blocks().size(), false);
  std::vector<std::pair<std::size_t, std::size_t>> path{{0, 0}};  // a block, and its next edge
  seen[0] = true;
  while (!path.empty()) {
    const auto [block, edge] = path.back();
    if (edge == flow.blocks()[block].next.size()) {
      order_.push_back(block);
      path.pop_back();
      continue;
    }
    ++path.back().second;
    const std::size_t to = flow.blocks()[block].next[edge].to;
    from_[to].push_back(block);
    if (!seen[to]) path.emplace_back(to, 0);
    seen[to] = true;
  }
  std::reverse(order_.begin(), order_.end());
  for (std::size_t n = 0; n < order_.size(); ++n) position_[order_[n]] = n;
}

std::vector<std::size_t> AmdLoops::blocks_of_loop(std::size_t head) const {
  std::vector<bool> seen(position_.size(), false);
  std::vector<std::size_t> loop;
  const auto arrive = [&](std::size_t block) {
    if (seen[block] || position_[block] <= position_[head]) return;
    seen[block] = true;
    loop.push_back(block);
  };
  for (const std::size_t from : from_[head]) arrive(from);
  for (std::size_t n = 0; n < loop.size(); ++n) {
    for (const std::size_t from : from_[loop[n]]) arrive(from);
  }
  return loop;
}

}  // namespace fulmen::gpu
