// Short AMD kernels as a disassembler prints them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace fulmen::test {

// Lines of "name operands" with an address each, four bytes apart, as llvm-objdump prints them.
// "@n" as the operand is the distance to line n.
inline std::string amd_text(const std::vector<std::string>& lines) {
  std::string text = "\nDisassembly of section .text:\n\n0000000000001000 <fulmen_kernel>:\n";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i];
    if (const std::size_t at = line.find('@'); at != std::string::npos) {
      const int distance = std::stoi(line.substr(at + 1)) - static_cast<int>(i) - 1;
      line = line.substr(0, at) + std::to_string(static_cast<uint16_t>(distance));
    }
    char address[40];
    std::snprintf(address, sizeof address, " // %012X: BF800000",
                  static_cast<unsigned>(0x1000 + 4 * i));
    text += "\t" + line + address + "\n";
  }
  return text;
}

}  // namespace fulmen::test
