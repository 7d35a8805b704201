// The arguments that a runtime adds to those of the caller: LLVM's "User Guide for AMDGPU Backend",
// Code Object V5 Metadata.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "emulator/machine_code/wave.h"
#include "gpu/compile/report/amd_metadata.h"

namespace fulmen::gpu::isa {

// Writes the numbers of the launch where the metadata says that the kernel looks for them: sizes of
// workgroups and of the grid, dynamic LDS. Others (printf, the heap, queues) stay as they are.
void write_hidden_arguments(std::span<const AmdArgument> arguments, const Grid& grid,
                            int dynamic_lds_bytes, std::vector<std::byte>& bytes);

}  // namespace fulmen::gpu::isa
