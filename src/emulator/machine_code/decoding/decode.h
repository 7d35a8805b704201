// Decodes a disassembly to a program that the emulator runs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "emulator/machine_code/instruction.h"
#include "fulmen/status.h"

namespace fulmen::gpu::isa {

// Fills code and lines from program.disassembly. Errors name the first instruction, operand or
// modifier that the emulator does not know: nothing is skipped.
Status decode(Program& program);

// Reads the kernel descriptor of a code object for `arch`, disassembles and decodes it. kernel: its
// name, "" for the first one.
Result<Program> read_code_object(std::span<const std::byte> code_object, const std::string& arch,
                                 const std::string& kernel = {});

}  // namespace fulmen::gpu::isa
