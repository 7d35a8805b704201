// Disassemblers of AMD code objects: AMD's libamd_comgr, which comes with every hipRTC, and llvm-objdump.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "fulmen/status.h"
#include "gpu/drivers/library_search.h"

namespace fulmen::gpu {

// Thread-safe. The text has the form of llvm-objdump -d, which amd_disassembly.h reads.
class AmdDisassembler {
 public:
  virtual ~AmdDisassembler() = default;
  virtual Result<std::string> text_of(std::span<const std::byte> code_object, const std::string& arch) const = 0;
};

// Errors: the library is not there, or lacks an entry point.
Result<std::unique_ptr<const AmdDisassembler>> open_comgr(const LibrarySearch& search);
// The llvm-objdump of an LLVM in PATH or of ROCm. Errors: there is none.
Result<std::unique_ptr<const AmdDisassembler>> find_objdump();

// The first of these that is there, found once a process. Errors name both.
Result<const AmdDisassembler*> amd_disassembler();

}  // namespace fulmen::gpu
