// What a compiler made of a kernel.
#pragma once

#include "fulmen/compile.h"
#include "gpu/chip.h"
#include "gpu/compile/compiler.h"

namespace fulmen::gpu {

// Registers, spills and occupancy from the compiler's log; the inner loop from the disassembly where llvm-objdump is installed.
KernelReport report_on(const Chip& chip, const CompileRequest& request, const CompiledCode& code, int lds_bytes);

// Counts of the inner loop in llvm-objdump's text of an AMD code object. Reads any text.
LoopCounts count_amd_loop(std::string_view disassembly);

}  // namespace fulmen::gpu
