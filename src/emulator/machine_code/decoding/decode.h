// Decodes a disassembly to a program that the emulator runs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "emulator/machine_code/instruction.h"
#include "fulmen/status.h"

namespace fulmen::gpu::isa {

// Addresses of the instructions that are decoded.
struct AddressRange {
  uint64_t begin = 0, end = ~uint64_t{0};
};

// Fills code and lines from program.disassembly. Errors name the first instruction, operand or
// modifier that the emulator does not know: nothing of the range is skipped.
Status decode(Program& program, const AddressRange& range = {});

struct CodeObjectOptions {
  std::string kernel{};  // its name, "" for the first one
  // Takes what assembly is written with and no compiler here emits: subnormal numbers that are
  // flushed, with which the emulator computes nevertheless; vector registers where accumulators
  // would begin, in kernels that have none; barriers ahead of which stores to LDS are not waited
  // for (one LDS takes all waves' accesses in order).
  bool hand_written = false;
};
// Reads the kernel descriptor and the metadata of a code object for `arch`, disassembles and
// decodes it.
Result<Program> read_code_object(std::span<const std::byte> code_object, const std::string& arch,
                                 const CodeObjectOptions& options = {});

}  // namespace fulmen::gpu::isa
