// What a compiler did to an AMD kernel, read from its machine code. The emulator runs the kernel's
// source and cannot see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

// What is known of a kernel besides its instructions; -1: not known, and not looked at.
struct AmdKernelFacts {
  std::string_view arch;     // "gfx1100": decides on wait counters and hazards
  int64_t lds_bytes = -1;    // of a workgroup
  int initial_scalars = -1;  // s0 to this one exclusively are set when a wave starts
  int initial_vectors = -1;  // likewise v0...
};

// What a code object says of its first kernel.
AmdKernelFacts amd_kernel_facts(std::span<const std::byte> code_object, std::string_view arch);

// What is wrong with a kernel's machine code, a sentence each: none for a right one. The rules are
// in amd_rules/rules.h.
//
// disassembly: of llvm-objdump -d. Reads any text.
std::vector<std::string> amd_findings(std::string_view disassembly, const AmdKernelFacts& facts);

}  // namespace fulmen::gpu
