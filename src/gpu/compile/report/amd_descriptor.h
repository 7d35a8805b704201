// The kernel descriptor of an AMD code object: what registers are set when a wave starts.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace fulmen::gpu {

struct AmdInitialRegisters {
  int scalars = -1, vectors = -1;  // s0... and v0... that are set; -1: the descriptor was not found
};

// arch decides where the workgroup's numbers are. Any bytes are safe.
AmdInitialRegisters read_amd_initial_registers(std::span<const std::byte> code_object, std::string_view arch);

}  // namespace fulmen::gpu
