// What an AMD code object says of its kernels: the note "AMDGPU" of the ELF, a map in MessagePack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::gpu {

// An argument's place in the kernel's arguments.
struct AmdArgument {
  std::string kind;  // "global_buffer", "by_value", "hidden_block_count_x"
  int64_t offset = 0, bytes = 0;
};

struct AmdKernelMetadata {
  std::string name, target;      // "fulmen_kernel", "amdgcn-amd-amdhsa--gfx1100"
  int64_t vector_registers = 0;  // CDNA: accumulators included
  int64_t accumulators = 0;
  int64_t scalar_registers = 0;
  int64_t vector_spills = 0, scalar_spills = 0;
  int64_t scratch_bytes = 0;   // of a lane
  int64_t lds_bytes = 0;       // static
  int64_t argument_bytes = 0;  // hidden arguments included
  int64_t max_workgroup_size = 0;
  int64_t wave_size = 0;
  std::vector<AmdArgument> arguments;  // in the kernel's order, hidden ones last
};

// Every kernel of a code object. Any bytes are safe. Errors: no 64-bit little-endian ELF, no such
// note, a note that is not whole.
Result<std::vector<AmdKernelMetadata>> read_amd_metadata(std::span<const std::byte> code_object);

// An error where a kernel runs in waves of other than `lanes` lanes, for which it was written. A
// code object that does not tell is taken: its runtime will say what is wrong with it.
Status check_wave_size(std::span<const std::byte> code_object, int lanes);

}  // namespace fulmen::gpu
