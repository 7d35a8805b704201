// Any bytes given as a code object, as its metadata, or as a disassembler's text are read without
// harm.
#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/compile/report/amd_check.h"
#include "gpu/compile/report/amd_descriptor.h"
#include "gpu/compile/report/amd_metadata.h"
#include "gpu/compile/report/inner_loop.h"

namespace {

void check(std::span<const std::byte> code_object) {
  const auto kernels = fulmen::gpu::read_amd_metadata(code_object);
  if (!kernels.ok() && kernels.status().message().empty()) std::abort();
  if (fulmen::gpu::read_amd_initial_registers(code_object, "gfx1100").scalars > 64) std::abort();
}

// An ELF file whose only section is a note with this metadata.
std::vector<std::byte> code_object_of(std::span<const std::byte> metadata) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shoff = sizeof header;
  header.e_shnum = 1;
  const Elf64_Nhdr note{7, static_cast<Elf64_Word>(metadata.size()), 32};
  constexpr char kOwner[8] = "AMDGPU";
  Elf64_Shdr section{};
  section.sh_type = SHT_NOTE;
  section.sh_offset = sizeof header + sizeof section;
  section.sh_size = sizeof note + sizeof kOwner + metadata.size();
  std::vector<std::byte> file;
  const auto put = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    file.insert(file.end(), from, from + bytes);
  };
  put(&header, sizeof header);
  put(&section, sizeof section);
  put(&note, sizeof note);
  put(kOwner, sizeof kOwner);
  put(metadata.data(), metadata.size());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  check(code_object_of(bytes));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const fulmen::LoopCounts& c :
       {fulmen::gpu::count_amd_loop(text), fulmen::gpu::count_nvidia_loop(text)}) {
    if (c.total < 0 || c.matrix > c.total ||
        c.vector + c.transcendental + c.lds + c.memory + c.scalar > c.total)
      std::abort();
  }
  for (const char* arch : {"gfx1100", "gfx1201", "gfx942"})
    fulmen::gpu::amd_findings(text, {.arch = arch, .lds_bytes = 64});
  return 0;
}
