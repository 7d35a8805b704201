// Disassemblers of AMD code objects: AMD's libamd_comgr, which comes with every hipRTC, and
// llvm-objdump.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fulmen/status.h"
#include "gpu/libraries/library_search.h"

namespace fulmen::gpu {

// Thread-safe. The text has the form of llvm-objdump -d, which amd_disassembly.h reads.
class AmdDisassembler {
 public:
  virtual ~AmdDisassembler() = default;
  virtual Result<std::string> text_of(std::span<const std::byte> code_object,
                                      const std::string& arch) const = 0;
};

// Errors: the library is not there, or lacks an entry point.
Result<std::unique_ptr<const AmdDisassembler>> open_comgr(const LibrarySearch& search);
// first_that_knows of each llvm-objdump: beside the clang that $FULMEN_AMD_COMPILER names, in PATH,
// of ROCm. Errors: there is none.
Result<std::unique_ptr<const AmdDisassembler>> find_objdump();

// Asks one after another for the code object. The first text without an unknown instruction is the
// answer, else the first text at all. An old libamd_comgr knows neither newer chips nor all of
// their instructions, and a newer llvm-objdump may be beside it. Errors name each one's.
std::unique_ptr<const AmdDisassembler> first_that_knows(
    std::vector<std::unique_ptr<const AmdDisassembler>> disassemblers);

// first_that_knows of libamd_comgr and llvm-objdump, found once a process. Errors: neither is
// there.
Result<const AmdDisassembler*> amd_disassembler();

}  // namespace fulmen::gpu
