// The kernel descriptor of an AMD code object: what registers are set when a wave starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fulmen::gpu {

struct AmdInitialRegisters {
  int scalars = -1, vectors = -1;  // s0... and v0... that are set; -1: the descriptor was not found
};

// Three work-item numbers begin in one register, of ten bits each: on all but gfx10 and older chips
// without accumulators.
bool has_packed_work_items(std::string_view arch);

// arch decides where the workgroup's numbers are. Any bytes are safe.
AmdInitialRegisters read_amd_initial_registers(std::span<const std::byte> code_object,
                                               std::string_view arch);

// The descriptor's fields, as they are.
struct AmdKernelDescriptor {
  uint64_t address = 0, entry = 0;  // of the descriptor, of the first instruction
  uint32_t lds_bytes = 0, scratch_bytes = 0, kernarg_bytes = 0;
  uint32_t resources1 = 0, resources2 = 0, resources3 = 0;  // compute_pgm_rsrc1...
  uint16_t properties = 0, preloaded_arguments = 0;
};

// Reads the descriptor of the kernel of that name, of the first one for "". Any bytes are safe.
std::optional<AmdKernelDescriptor> read_amd_kernel_descriptor(
    std::span<const std::byte> code_object, std::string_view kernel = {});

}  // namespace fulmen::gpu
