#include "gpu_drivers/fake/code_object.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

namespace fulmen::fake {
namespace {

constexpr unsigned kMachineAmdGpu = 224;      // EM_AMDGPU
constexpr unsigned kMachMask = 0xff;          // EF_AMDGPU_MACH
constexpr unsigned kNoteAmdGpuMetadata = 32;  // NT_AMDGPU_METADATA

// EF_AMDGPU_MACH_AMDGCN_* of LLVM's AMDGPU usage page.
const std::map<unsigned, std::string> kChips{
    {0x3f, "gfx90a"},  {0x41, "gfx1100"}, {0x46, "gfx1101"}, {0x47, "gfx1102"},
    {0x4a, "gfx1151"}, {0x4c, "gfx942"},  {0x48, "gfx1200"}, {0x4e, "gfx1201"}};

std::size_t up_to_4(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

void read_kernels(const nlohmann::json& metadata, CodeObject& object) {
  for (const auto& entry : metadata.at("amdhsa.kernels")) {
    CodeObjectKernel kernel;
    kernel.name = entry.at(".name");
    kernel.lds_bytes = entry.at(".group_segment_fixed_size");
    kernel.max_workgroup = entry.at(".max_flat_workgroup_size");
    for (const auto& argument : entry.value(".args", nlohmann::json::array())) {
      const std::string kind = argument.at(".value_kind");
      if (kind.starts_with("hidden_")) continue;
      kernel.argument_bytes =
          std::max(kernel.argument_bytes, argument.at(".offset").get<std::size_t>() +
                                              argument.at(".size").get<std::size_t>());
    }
    object.kernels.push_back(std::move(kernel));
  }
}

}  // namespace

CodeObject read_code_object(const void* image) {
  CodeObject object;
  const auto* bytes = static_cast<const unsigned char*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kMachineAmdGpu) {
    object.error = "it is no ELF for an AMD GPU";
    return object;
  }
  // The section table is the last part.
  object.bytes = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  const auto chip = kChips.find(header.e_flags & kMachMask);
  object.chip = chip == kChips.end() ? "unknown" : chip->second;
  for (unsigned n = 0; n < header.e_phnum; ++n) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes + header.e_phoff + n * sizeof(segment), sizeof(segment));
    if (segment.p_type != PT_NOTE) continue;
    for (std::size_t at = segment.p_offset;
         at + sizeof(Elf64_Nhdr) <= segment.p_offset + segment.p_filesz;) {
      Elf64_Nhdr note;
      std::memcpy(&note, bytes + at, sizeof(note));
      const unsigned char* text = bytes + at + sizeof(note) + up_to_4(note.n_namesz);
      at += sizeof(note) + up_to_4(note.n_namesz) + up_to_4(note.n_descsz);
      if (note.n_type == kNoteAmdGpuMetadata)
        read_kernels(nlohmann::json::from_msgpack(text, text + note.n_descsz), object);
    }
  }
  if (object.kernels.empty()) object.error = "its notes name no kernel";
  return object;
}

}  // namespace fulmen::fake
