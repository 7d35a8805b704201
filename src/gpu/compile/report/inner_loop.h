// The inner loop of a compiled kernel, from a disassembler's text.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "fulmen/compile.h"

namespace fulmen::gpu {

struct WayCounts : LoopCounts {
  // Lanes' exchanges (ds_bpermute), a part of lds that touches no memory. An unusual way may have
  // them.
  int exchanges = 0;
};

struct Instruction {
  enum class Flow {
    next,         // to the next instruction
    conditional,  // or jumps to target
    jump,
    end,
  };
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  Flow flow = Flow::next;
  std::size_t target = kNowhere;  // index of the instruction jumped to; kNowhere: not known
  WayCounts counts;               // of this instruction alone
};

// Loops are found as compilers define them: edges to a block that dominates their source, with all
// blocks that reach the source without passing the target. Of the loops with matrix instructions
// that hold no other such, the one with most of them is taken (of equals the shortest: a tile
// without masks). What is counted is one way round it, the one with most products, accesses of LDS
// and memory and then fewest instructions: without what is skipped when nothing unusual happens. A
// kernel whose matrix instructions are in no loop counts as a whole, one without any by its longest
// loop.
LoopCounts inner_loop(const std::vector<Instruction>& code);

// From the text of llvm-objdump -d and of nvdisasm -c. Reads any text.
LoopCounts count_amd_loop(std::string_view disassembly);
LoopCounts count_nvidia_loop(std::string_view disassembly);

}  // namespace fulmen::gpu
