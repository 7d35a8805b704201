// The inner loop of an AMD kernel, from llvm-objdump's text: lines "\t<mnemonic> <operands> // <address>: ..." and branches whose
// first operand is the distance in words. Loops are found as compilers define them: an edge to a block that dominates its source,
// with all blocks that reach the source without passing the target.
#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "gpu/compile/report.h"

namespace fulmen::gpu {
namespace {

struct Instruction {
  std::string_view name, operands;
  uint64_t address = 0;
};

struct Block {
  std::size_t begin = 0, end = 0;  // instructions
  std::vector<std::size_t> successors, predecessors;
};

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

bool parse(std::string_view line, Instruction& instruction) {
  const std::size_t comment = line.find("// ");
  if (comment == std::string_view::npos || line.empty() || line[0] != '\t') return false;
  const std::string_view digits = line.substr(comment + 3);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), instruction.address, 16).ec != std::errc()) return false;
  const std::string_view text = trim(line.substr(0, comment));
  const std::size_t end = std::min(text.find(' '), text.size());
  instruction.name = text.substr(0, end);
  instruction.operands = trim(text.substr(end));
  return true;
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_branch(const Instruction& i) { return starts_with_any(i.name, {"s_cbranch", "s_branch"}); }

uint64_t target_of(const Instruction& i) {
  int distance = 0;
  std::from_chars(i.operands.data(), i.operands.data() + i.operands.size(), distance);
  if (distance >= 32768) distance -= 65536;
  return i.address + 4 + static_cast<uint64_t>(static_cast<int64_t>(distance) * 4);
}

std::vector<Block> blocks_of(const std::vector<Instruction>& code) {
  std::map<uint64_t, std::size_t> index;
  for (std::size_t n = 0; n < code.size(); ++n) index[code[n].address] = n;
  std::vector<bool> starts(code.size() + 1, false);
  starts[0] = true;
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (!is_branch(code[n]) && code[n].name != "s_endpgm") continue;
    starts[n + 1] = true;
    if (const auto target = index.find(target_of(code[n])); is_branch(code[n]) && target != index.end())
      starts[target->second] = true;
  }
  std::vector<Block> blocks;
  std::map<std::size_t, std::size_t> block_at;  // by first instruction
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (starts[n]) {
      block_at[n] = blocks.size();
      blocks.push_back({n, n, {}, {}});
    }
    blocks.back().end = n + 1;
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Instruction& last = code[blocks[b].end - 1];
    const auto link = [&](std::size_t to) {
      blocks[b].successors.push_back(to);
      blocks[to].predecessors.push_back(b);
    };
    if (is_branch(last)) {
      if (const auto target = index.find(target_of(last)); target != index.end()) link(block_at[target->second]);
    }
    if (last.name != "s_branch" && last.name != "s_endpgm" && b + 1 < blocks.size()) link(b + 1);
  }
  return blocks;
}

// dominators[b][d]: every way from the entry to b passes d.
std::vector<std::vector<bool>> dominators_of(const std::vector<Block>& blocks) {
  std::vector<std::vector<bool>> dominators(blocks.size(), std::vector<bool>(blocks.size(), true));
  dominators[0].assign(blocks.size(), false);
  dominators[0][0] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = 1; b < blocks.size(); ++b) {
      std::vector<bool> now(blocks.size(), !blocks[b].predecessors.empty());
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

void count(std::string_view name, LoopCounts& c) {
  ++c.total;
  if (starts_with_any(name, {"v_wmma_", "v_mfma_"})) {
    ++c.matrix;
    c.matrix_products += name.find("32x32x8") != std::string_view::npos ? 2 : 1;
  } else if (starts_with_any(name, {"v_exp_", "v_log_", "v_rcp_"})) {
    ++c.transcendental;
  } else if (name.starts_with("v_")) {
    ++c.vector;  // v_dual_*: one instruction, two operations
  } else if (name.starts_with("ds_")) {
    ++c.lds;
  } else if (starts_with_any(name, {"global_load", "global_store", "flat_", "buffer_", "scratch_"})) {
    ++c.memory;
  } else {
    ++c.scalar;
  }
}

LoopCounts sum(const LoopCounts& a, const LoopCounts& b) {
  return {a.matrix + b.matrix, a.matrix_products + b.matrix_products,
          a.vector + b.vector, a.transcendental + b.transcendental,
          a.lds + b.lds,       a.memory + b.memory,
          a.scalar + b.scalar, a.total + b.total};
}

// The way that does more of the loop's work; of equals the one with fewer instructions.
bool better_way(const LoopCounts& a, const LoopCounts& b) {
  const int work_a = a.matrix + a.lds + a.memory, work_b = b.matrix + b.lds + b.memory;
  return work_a != work_b ? work_a > work_b : a.total < b.total;
}

// The natural loop of the edges from `open` to `header`: one way round it, with all its products and memory accesses and without
// what is skipped when nothing unusual happens.
LoopCounts count_loop(const std::vector<Instruction>& code, const std::vector<Block>& blocks, std::size_t header,
                      std::vector<std::size_t> open) {
  std::vector<bool> inside(blocks.size(), false);
  inside[header] = true;
  while (!open.empty()) {
    const std::size_t b = open.back();
    open.pop_back();
    if (inside[b]) continue;
    inside[b] = true;
    open.insert(open.end(), blocks[b].predecessors.begin(), blocks[b].predecessors.end());
  }
  // From each block to the latch, later ones first: blocks are taken when all that follow them are known.
  std::vector<LoopCounts> rest(blocks.size());
  std::vector<bool> known(blocks.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (!inside[b] || known[b]) continue;
      LoopCounts best;
      bool ready = true;
      for (const std::size_t next : blocks[b].successors) {
        if (next == header || !inside[next]) continue;
        ready = ready && known[next];
        if (best.total == 0 || better_way(rest[next], best)) best = rest[next];
      }
      if (!ready) continue;
      LoopCounts own;
      for (std::size_t i = blocks[b].begin; i < blocks[b].end; ++i) count(code[i].name, own);
      rest[b] = sum(own, best);
      known[b] = changed = true;
    }
  }
  return rest[header];
}

}  // namespace

LoopCounts count_amd_loop(std::string_view text) {
  std::vector<Instruction> code;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (Instruction instruction; parse(text.substr(at, end - at), instruction)) code.push_back(instruction);
    at = end + 1;
  }
  LoopCounts best;
  if (code.empty()) return best;
  const std::vector<Block> blocks = blocks_of(code);
  const std::vector<std::vector<bool>> dominators = dominators_of(blocks);
  for (std::size_t header = 0; header < blocks.size(); ++header) {
    std::vector<std::size_t> latches;
    for (const std::size_t p : blocks[header].predecessors) {
      if (dominators[p][header]) latches.push_back(p);
    }
    if (latches.empty()) continue;
    const LoopCounts loop = count_loop(code, blocks, header, latches);
    // The one with matrix instructions and the fewest others; else the longest.
    const bool better = best.total == 0 || (loop.matrix > 0 && (best.matrix == 0 || loop.total < best.total)) ||
                        (loop.matrix == 0 && best.matrix == 0 && loop.total > best.total);
    if (better) best = loop;
  }
  return best;
}

}  // namespace fulmen::gpu
