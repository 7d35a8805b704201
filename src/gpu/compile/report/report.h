// What a compiler made of a kernel.
#pragma once

#include "fulmen/compile.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

// Registers and spills from the code object (AMD) or the compiler's log (NVIDIA), occupancy, and
// the inner loop from the disassembly where llvm-objdump (nvdisasm) is installed.
KernelReport report_on(const Chip& chip, const CompileRequest& request, const CompiledCode& code,
                       int lds_bytes);

}  // namespace fulmen::gpu
