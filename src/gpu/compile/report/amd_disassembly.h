// The text of llvm-objdump -d for an AMD code object, as instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

// The views point into the disassembler's text.
struct AmdInstruction {
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  uint64_t address = 0;
  std::string_view name;          // "s_and_saveexec_b32"
  std::string_view operands;      // "s0, vcc_lo"
  std::size_t target = kNowhere;  // index of the instruction that a branch jumps to; kNowhere: not
                                  // known
  bool branches = false, falls_through = true;
};

// All instructions in order, without padding. Lines of another form are left out.
std::vector<AmdInstruction> read_amd_disassembly(std::string_view text);

}  // namespace fulmen::gpu
