// The control flow of an AMD kernel, and how a property is followed along it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

struct AmdEdge {
  std::size_t to = AmdInstruction::kNowhere;
  // Taken with no lane on, past a block of which another way leads to the same place: vector
  // registers are then as if the block had run without lanes.
  bool without_lanes = false;
};

struct AmdBlock {
  std::size_t begin = 0, end = 0;  // of its instructions
  std::vector<AmdEdge> next;
};

class AmdFlow {
 public:
  explicit AmdFlow(const std::vector<AmdInstruction>& code);
  explicit AmdFlow(std::vector<AmdBlock> blocks) : blocks_(std::move(blocks)) {}
  const std::vector<AmdBlock>& blocks() const { return blocks_; }
  // The blocks between a branch and its immediate post-dominator; all that can follow where it has
  // none.
  std::vector<std::size_t> blocks_before_post_dominator(std::size_t block) const;

 private:
  void find_edges(const std::vector<AmdInstruction>& code,
                  const std::vector<std::size_t>& block_of);
  std::vector<bool> reachable_from(std::size_t block) const;
  // The blocks behind this one on a shortest way to an end; none where no way ends.
  std::vector<std::size_t> way_to_end(std::size_t block) const;
  std::vector<AmdBlock> blocks_;
};

// What holds before each block, over all ways from the entry; nothing where no way leads.
//   step(state, instruction number) goes over an instruction.
//   cross(state, edge) takes it to another block.
//   meet(state, other) makes one state of two ways; true where it changed. It must go one way only.
template <class State, class Step, class Cross, class Meet>
std::vector<std::optional<State>> states_before_blocks(const AmdFlow& flow, const State& entry,
                                                       Step step, Cross cross, Meet meet) {
  std::vector<std::optional<State>> before(flow.blocks().size());
  if (before.empty()) return before;
  before[0] = entry;
  std::set<std::size_t> waiting{0};
  while (!waiting.empty()) {
    const std::size_t block = *waiting.begin();
    waiting.erase(waiting.begin());
    State state = *before[block];
    for (std::size_t i = flow.blocks()[block].begin; i < flow.blocks()[block].end; ++i)
      step(state, i);
    for (const AmdEdge& edge : flow.blocks()[block].next) {
      State moved = state;
      cross(moved, edge);
      std::optional<State>& target = before[edge.to];
      if (target && !meet(*target, moved)) continue;
      if (!target) target = std::move(moved);
      waiting.insert(edge.to);
    }
  }
  return before;
}

// Goes over the instructions of all blocks that are reached once more, with the state before each.
template <class State, class Step>
void visit_instructions(const AmdFlow& flow, const std::vector<std::optional<State>>& before,
                        Step step) {
  for (std::size_t block = 0; block < before.size(); ++block) {
    if (!before[block]) continue;
    State state = *before[block];
    for (std::size_t i = flow.blocks()[block].begin; i < flow.blocks()[block].end; ++i)
      step(state, i);
  }
}

}  // namespace fulmen::gpu
