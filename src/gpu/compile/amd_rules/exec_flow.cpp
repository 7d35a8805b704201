#include "gpu/compile/amd_rules/exec_flow.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "gpu/compile/amd_rules/loops.h"
#include "gpu/compile/amd_rules/mask_steps.h"

namespace fulmen::gpu {
namespace {

using Ways = std::vector<const MaskRegisters*>;

bool all_have(const Ways& ways, std::size_t r, int mask) {
  return std::all_of(ways.begin(), ways.end(), [&](const auto* way) { return (*way)[r] == mask; });
}

// The masks where several ways meet. If EXEC differs between them, it gets a new name there, by
// `block`, as a part of the smallest mask that holds all of them. The lanes that EXEC is missing
// get the name that belongs to it. That is how a loop is understood: a mask is 0 before the first
// round, each round adds the lanes that leave, and the code behind the loop turns them on again. On
// every way to the next round that mask is what EXEC is missing.
class Junction {
 public:
  Junction(ExecMasks& names, const Ways& ways, int block)
      : names_(names), ways_(ways), block_(block) {}

  MaskRegisters masks() {
    MaskRegisters masks = *ways_.front();
    if (all_have(ways_, kExec, masks[kExec])) {
      for (std::size_t r = 0; r < kExec; ++r) {
        if (!all_have(ways_, r, masks[r])) masks[r] = ExecMasks::kUnknown;
      }
      return masks;
    }
    const int whole = common_whole();
    masks[kExec] = names_.part(whole, block_, true);
    const std::vector<Kind> kinds = kinds_of(whole, masks[kExec]);
    for (std::size_t r = 0; r < kExec; ++r) masks[r] = mask_of(r, kinds);
    return masks;
  }

 private:
  // A mask on each way, and its name where they meet.
  struct Kind {
    std::vector<int> on_way;
    int together;
  };

  // The smallest mask that holds EXEC of all ways. The block gave its names to other lanes when it
  // ran last: such a name does not count.
  int common_whole() const {
    int whole = ExecMasks::kNone;
    for (const auto* way : ways_) whole = names_.common_whole(whole, (*way)[kExec]);
    while (names_.depends_on(whole, block_)) whole = names_.whole_of(whole);
    return whole;
  }
  // EXEC, and for each mask that it is a part of, the lanes that it is missing.
  std::vector<Kind> kinds_of(int whole, int exec) {
    std::vector<Kind> kinds;
    if (whole == ExecMasks::kUnknown) return kinds;
    kinds.push_back({{}, exec});
    for (const auto* way : ways_) kinds.back().on_way.push_back((*way)[kExec]);
    for (int of = whole; of != ExecMasks::kUnknown; of = names_.whole_of(of)) {
      kinds.push_back({{}, names_.rest(of, exec)});
      for (const auto* way : ways_) kinds.back().on_way.push_back(names_.rest(of, (*way)[kExec]));
    }
    return kinds;
  }
  int mask_of(std::size_t r, const std::vector<Kind>& kinds) const {
    const int mask = (*ways_.front())[r];
    if (all_have(ways_, r, mask) && !names_.depends_on(mask, block_)) return mask;
    for (const Kind& kind : kinds) {
      bool same = true;
      for (std::size_t w = 0; w < ways_.size(); ++w)
        same = same && (*ways_[w])[r] == kind.on_way[w];
      if (same) return kind.together;
    }
    return ExecMasks::kUnknown;
  }

  ExecMasks& names_;
  const Ways& ways_;
  int block_;
};

// The masks before each block. Where ways meet, what they say now counts, and not what they said
// before. When the masks that enter a loop change, its blocks are computed afresh: masks that were
// named by the former ones would look like other lanes. A block that was computed often (kAnew) may
// lose masks but gain none, so the search ends. In the result, the masks before a block are what
// all ways to it say.
template <class Step>
class MasksBefore {
 public:
  MasksBefore(const AmdFlow& flow, ExecMasks& names, Step step)
      : flow_(flow),
        loops_(flow),
        names_(names),
        step_(step),
        times_(flow.blocks().size(), 0),
        before_(flow.blocks().size()),
        after_(before_),
        outside_(before_) {}

  std::vector<std::optional<MaskRegisters>> of_blocks(const MaskRegisters& entry) {
    if (!flow_.blocks().empty()) waiting_.insert(0);
    while (!waiting_.empty()) {
      const std::size_t b = loops_.order()[*waiting_.begin()];
      waiting_.erase(waiting_.begin());
      std::optional<MaskRegisters> now = arriving(b, entry);
      if (now == before_[b]) continue;
      before_[b] = now;
      const AmdBlock& block = flow_.blocks()[b];
      for (std::size_t i = block.begin; i < block.end; ++i) step_(*now, i);
      after_[b] = now;
      for (const AmdEdge& edge : block.next) waiting_.insert(loops_.position(edge.to));
    }
    return before_;
  }

 private:
  std::optional<MaskRegisters> arriving(std::size_t b, const MaskRegisters& entry) {
    constexpr int kAnew = 64;
    Ways outside, ways;
    if (b == 0) outside.push_back(&entry);
    for (const std::size_t from : loops_.ways_to(b)) {
      if (after_[from]) (loops_.leads_back(from, b) ? ways : outside).push_back(&*after_[from]);
    }
    const int name = -1 - static_cast<int>(b);
    ++times_[b];
    if (!outside.empty() && times_[b] <= kAnew) {
      const MaskRegisters masks = Junction(names_, outside, name).masks();
      if (!before_[b] || outside_[b] != masks) {
        outside_[b] = masks;
        for (const std::size_t other : loops_.blocks_of_loop(b)) {
          before_[other].reset();
          after_[other].reset();
          waiting_.insert(loops_.position(other));
        }
        return masks;
      }
    }
    ways.insert(ways.end(), outside.begin(), outside.end());
    if (times_[b] > kAnew && before_[b]) ways.push_back(&*before_[b]);
    if (ways.empty()) return std::nullopt;
    return Junction(names_, ways, name).masks();
  }

  const AmdFlow& flow_;
  AmdLoops loops_;
  ExecMasks& names_;
  Step step_;
  std::vector<int> times_;         // how often each block was computed
  std::set<std::size_t> waiting_;  // positions of blocks
  // outside_: what enters a loop, by its first block.
  std::vector<std::optional<MaskRegisters>> before_, after_, outside_;
};

}  // namespace

bool has_64_lanes(const std::vector<AmdInstruction>& code) {
  return std::any_of(code.begin(), code.end(), [](const AmdInstruction& instruction) {
    const std::size_t at = instruction.operands.find("exec");
    return at != std::string_view::npos && !instruction.operands.substr(at).starts_with("exec_");
  });
}

std::vector<int> exec_before_instructions(const std::vector<AmdInstruction>& code,
                                          const AmdFlow& flow) {
  MaskRegisters entry;
  entry.fill(ExecMasks::kUnknown);
  entry[kExec] = ExecMasks::kAllLanes;
  ExecMasks names;
  MaskSteps steps(names, has_64_lanes(code));
  const auto step = [&](MaskRegisters& masks, std::size_t i) { steps.step(code[i], i, masks); };
  const auto before = MasksBefore(flow, names, step).of_blocks(entry);
  std::vector<int> exec(code.size(), kNeverReached);
  visit_instructions(flow, before, [&](MaskRegisters& masks, std::size_t i) {
    // A block may be there more than once (path_facts.h).
    exec[i] =
        exec[i] == kNeverReached || exec[i] == masks[kExec] ? masks[kExec] : ExecMasks::kUnknown;
    step(masks, i);
  });
  return exec;
}

}  // namespace fulmen::gpu
