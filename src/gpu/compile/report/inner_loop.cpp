#include "gpu/compile/report/inner_loop.h"

#include <algorithm>
#include <utility>

namespace fulmen::gpu {
namespace {

using Flow = Instruction::Flow;

struct Block {
  std::size_t begin = 0, end = 0;  // instructions
  std::vector<std::size_t> successors, predecessors;
  WayCounts counts;
};

void add(WayCounts& sum, const WayCounts& more) {
  sum.matrix += more.matrix;
  sum.matrix_products += more.matrix_products;
  sum.vector += more.vector;
  sum.transcendental += more.transcendental;
  sum.lds += more.lds;
  sum.exchanges += more.exchanges;
  sum.memory += more.memory;
  sum.scalar += more.scalar;
  sum.total += more.total;
}

// The first instructions of blocks.
std::vector<bool> block_starts(const std::vector<Instruction>& code) {
  std::vector<bool> starts(code.size() + 1, false);
  starts[0] = true;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].flow == Flow::next) continue;
    starts[i + 1] = true;
    if (code[i].target < code.size()) starts[code[i].target] = true;
  }
  return starts;
}

std::vector<Block> blocks_of(const std::vector<Instruction>& code) {
  const std::vector<bool> starts = block_starts(code);
  std::vector<Block> blocks;
  std::vector<std::size_t> block_of(code.size());
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (starts[i]) blocks.push_back({i, i, {}, {}, {}});
    blocks.back().end = i + 1;
    add(blocks.back().counts, code[i].counts);
    block_of[i] = blocks.size() - 1;
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Instruction& last = code[blocks[b].end - 1];
    const auto link = [&](std::size_t to) {
      blocks[b].successors.push_back(to);
      blocks[to].predecessors.push_back(b);
    };
    if (last.target < code.size()) link(block_of[last.target]);
    if (last.flow != Flow::jump && last.flow != Flow::end && b + 1 < blocks.size()) link(b + 1);
  }
  return blocks;
}

// Blocks in an order in which every edge goes forward but those that close a cycle. Blocks that
// nothing leads to, which compilers leave behind, are not in it.
std::vector<std::size_t> forward_order(const std::vector<Block>& blocks) {
  std::vector<std::size_t> order;
  std::vector<bool> seen(blocks.size(), false);
  // A block, and how many of its successors have been visited.
  std::vector<std::pair<std::size_t, std::size_t>> way{{0, 0}};
  seen[0] = true;
  while (!way.empty()) {
    auto& [block, visited] = way.back();
    if (visited == blocks[block].successors.size()) {
      order.push_back(block);
      way.pop_back();
      continue;
    }
    const std::size_t next = blocks[block].successors[visited++];
    if (seen[next]) continue;
    seen[next] = true;
    way.emplace_back(next, 0);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// Only of blocks in the order: a block that nothing leads to is no way into another.
void keep_predecessors(std::vector<Block>& blocks, const std::vector<std::size_t>& order) {
  std::vector<bool> reached(blocks.size(), false);
  for (const std::size_t b : order) reached[b] = true;
  for (Block& block : blocks)
    std::erase_if(block.predecessors, [&](std::size_t p) { return !reached[p]; });
}

using Dominators = std::vector<std::vector<bool>>;

// dominators[b][d]: every way from the entry to b passes d. order: forward_order().
Dominators dominators_of(const std::vector<Block>& blocks, const std::vector<std::size_t>& order) {
  Dominators dominators(blocks.size(), std::vector<bool>(blocks.size(), true));
  dominators[0].assign(blocks.size(), false);
  dominators[0][0] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (const std::size_t b : order) {
      if (b == 0) continue;
      std::vector<bool> now(blocks.size(), true);
      for (const std::size_t p : blocks[b].predecessors) {
        for (std::size_t d = 0; d < blocks.size(); ++d) now[d] = now[d] && dominators[p][d];
      }
      now[b] = true;
      changed = changed || now != dominators[b];
      dominators[b] = std::move(now);
    }
  }
  return dominators;
}

struct Loop {
  std::size_t header;
  std::vector<bool> inside;
  WayCounts counts;
};

// Blocks that reach a latch without passing the header.
std::vector<bool> natural_loop(const std::vector<Block>& blocks, std::size_t header,
                               std::vector<std::size_t> latches) {
  std::vector<bool> inside(blocks.size(), false);
  inside[header] = true;
  while (!latches.empty()) {
    const std::size_t b = latches.back();
    latches.pop_back();
    if (inside[b]) continue;
    inside[b] = true;
    latches.insert(latches.end(), blocks[b].predecessors.begin(), blocks[b].predecessors.end());
  }
  return inside;
}

bool better_way(const WayCounts& a, const WayCounts& b) {
  const auto work = [](const WayCounts& c) { return c.matrix + c.lds - c.exchanges + c.memory; };
  return work(a) != work(b) ? work(a) > work(b) : a.total < b.total;
}

// The best way from a block to the end of the kernel or of the loop's round; loops within are
// passed once.
WayCounts best_way(const std::vector<Block>& blocks, const std::vector<std::size_t>& order,
                   const std::vector<bool>& inside, std::size_t start) {
  std::vector<WayCounts> rest(blocks.size());
  std::vector<bool> known(blocks.size(), false);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const std::size_t b = *at;
    if (!inside[b]) continue;
    const WayCounts* best = nullptr;
    for (const std::size_t next : blocks[b].successors) {
      // Not known yet: back, to what comes before in the order. Compilers' loops may have several
      // entries.
      if (known[next] && (best == nullptr || better_way(rest[next], *best))) best = &rest[next];
    }
    rest[b] = blocks[b].counts;
    if (best != nullptr) add(rest[b], *best);
    known[b] = true;
  }
  return rest[start];
}

std::vector<Loop> loops_of(const std::vector<Block>& blocks,
                           const std::vector<std::size_t>& order) {
  const Dominators dominators = dominators_of(blocks, order);
  std::vector<Loop> loops;
  for (std::size_t header = 0; header < blocks.size(); ++header) {
    std::vector<std::size_t> latches;
    for (const std::size_t p : blocks[header].predecessors) {
      if (dominators[p][header]) latches.push_back(p);
    }
    if (latches.empty()) continue;
    Loop loop{header, natural_loop(blocks, header, std::move(latches)), {}};
    loop.counts = best_way(blocks, order, loop.inside, header);
    loops.push_back(std::move(loop));
  }
  return loops;
}

}  // namespace

LoopCounts inner_loop(const std::vector<Instruction>& code) {
  if (code.empty()) return {};
  std::vector<Block> blocks = blocks_of(code);
  const std::vector<std::size_t> order = forward_order(blocks);
  keep_predecessors(blocks, order);
  const std::vector<Loop> loops = loops_of(blocks, order);
  const auto holds_another = [&](const Loop& outer) {
    return std::any_of(loops.begin(), loops.end(), [&](const Loop& inner) {
      return &inner != &outer && inner.counts.matrix > 0 && outer.inside[inner.header];
    });
  };
  LoopCounts hot, longest;
  for (const Loop& loop : loops) {
    const LoopCounts& c = loop.counts;
    if (c.total > longest.total) longest = c;
    if (c.matrix == 0 || holds_another(loop)) continue;
    if (c.matrix > hot.matrix || (c.matrix == hot.matrix && c.total < hot.total)) hot = c;
  }
  if (hot.matrix > 0) return hot;
  const LoopCounts whole = best_way(blocks, order, std::vector<bool>(blocks.size(), true), 0);
  return whole.matrix > 0 || loops.empty() ? whole : longest;
}

}  // namespace fulmen::gpu
