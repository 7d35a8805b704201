// Lines are "\t<name> <operands> // <address>: <words> <symbol>"; branches name their distance in
// words from the next instruction.
#include "gpu/compile/report/amd_disassembly.h"

#include <charconv>
#include <map>

#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {

std::vector<AmdInstruction> read_amd_disassembly(std::string_view text) {
  std::vector<AmdInstruction> code;
  std::map<uint64_t, std::size_t> index;
  for (std::string_view line; take_line(text, line);) {
    const std::size_t comment = line.find("// ");
    if (comment == std::string_view::npos || !line.starts_with('\t')) continue;
    AmdInstruction instruction;
    const char* const address = line.data() + comment + 3;
    if (std::from_chars(address, line.data() + line.size(), instruction.address, 16).ec !=
        std::errc())
      continue;
    instruction.operands = line.substr(0, comment);
    instruction.name = take_word(instruction.operands);
    if (instruction.name == "s_code_end") continue;  // padding
    const bool jump = instruction.name == "s_branch";
    instruction.branches = jump || instruction.name.starts_with("s_cbranch_");
    instruction.falls_through =
        !jump && !begins_with_any(instruction.name, {"s_endpgm", "s_setpc_b64"});
    index[instruction.address] = code.size();
    code.push_back(instruction);
  }
  for (AmdInstruction& instruction : code) {
    const std::string_view words = instruction.operands;
    uint16_t distance = 0;
    if (!instruction.branches ||
        std::from_chars(words.data(), words.data() + words.size(), distance).ec != std::errc())
      continue;
    const auto bytes =
        static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(distance)) * 4);
    if (const auto found = index.find(instruction.address + 4 + bytes); found != index.end())
      instruction.target = found->second;
  }
  return code;
}

}  // namespace fulmen::gpu
