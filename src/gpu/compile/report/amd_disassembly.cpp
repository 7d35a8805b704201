// Lines are "\t<name> <operands> // <address>: <words> <symbol>"; branches name their distance in
// words from the next instruction, or a label, which has a line "<address> <<label>>:" of its own.
#include "gpu/compile/report/amd_disassembly.h"

#include <charconv>
#include <map>

#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

// Adds the label that the line is, if it is one.
void read_label(std::string_view line, std::map<std::string_view, uint64_t>& labels) {
  const std::size_t begin = line.find(" <"), end = line.find(">:");
  uint64_t address = 0;
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin + 2 ||
      std::from_chars(line.data(), line.data() + begin, address, 16).ec != std::errc())
    return;
  labels[line.substr(begin + 2, end - begin - 2)] = address;
}

}  // namespace

std::vector<AmdInstruction> read_amd_disassembly(std::string_view text) {
  std::vector<AmdInstruction> code;
  std::map<uint64_t, std::size_t> index;
  std::map<std::string_view, uint64_t> labels;
  for (std::string_view line; take_line(text, line);) {
    read_label(line, labels);
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
    if (!instruction.branches) continue;
    const std::string_view words = trimmed(instruction.operands);
    uint16_t distance = 0;
    uint64_t target = 0;
    if (const auto label = labels.find(words); label != labels.end()) {
      target = label->second;
    } else if (std::from_chars(words.data(), words.data() + words.size(), distance).ec ==
               std::errc()) {
      const auto bytes =
          static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(distance)) * 4);
      target = instruction.address + 4 + bytes;
    } else {
      continue;
    }
    if (const auto found = index.find(target); found != index.end())
      instruction.target = found->second;
  }
  return code;
}

}  // namespace fulmen::gpu
