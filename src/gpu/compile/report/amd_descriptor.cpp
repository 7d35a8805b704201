#include "gpu/compile/report/amd_descriptor.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "runtime/file_piece.h"

namespace fulmen::gpu {
namespace {

using Bytes = std::span<const std::byte>;

// hsa_kernel_descriptor_t: LLVM's "User Guide for AMDGPU Backend", Kernel Descriptor.
constexpr uint64_t kDescriptorBytes = 64;

constexpr std::array<std::string_view, 5> kPacked{"gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"};

// Where the file has an address of the loaded object.
std::optional<uint64_t> file_offset(Bytes file, const Elf64_Ehdr& header, uint64_t address) {
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_piece(file, header.e_phoff + i * sizeof segment, segment)) return {};
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr ||
        address - segment.p_vaddr >= segment.p_filesz)
      continue;
    return segment.p_offset + (address - segment.p_vaddr);
  }
  return {};
}

// The address of the symbol "<kernel>.kd"; of the first that ends in ".kd" where no kernel is
// named.
std::optional<uint64_t> find_descriptor(Bytes file, const Elf64_Ehdr& header,
                                        std::string_view kernel) {
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr table, names;
    if (!read_piece(file, header.e_shoff + i * sizeof table, table)) return {};
    if (table.sh_type != SHT_DYNSYM && table.sh_type != SHT_SYMTAB) continue;
    if (!read_piece(file, header.e_shoff + uint64_t{table.sh_link} * sizeof names, names))
      return {};
    const std::optional<Bytes> text = file_piece(file, names.sh_offset, names.sh_size);
    if (!text) return {};
    const std::string_view all(reinterpret_cast<const char*>(text->data()), text->size());
    const uint64_t symbols = std::min<uint64_t>(table.sh_size, file.size()) / sizeof(Elf64_Sym);
    for (uint64_t s = 0; s < symbols; ++s) {
      Elf64_Sym symbol;
      if (!read_piece(file, table.sh_offset + s * sizeof symbol, symbol) ||
          symbol.st_name >= all.size())
        return {};
      std::string_view name = all.substr(symbol.st_name);
      name = name.substr(0, name.find('\0'));
      if (!name.ends_with(".kd")) continue;
      name.remove_suffix(3);
      if (kernel.empty() || name == kernel) return symbol.st_value;
    }
  }
  return {};
}

}  // namespace

std::optional<AmdKernelDescriptor> read_amd_kernel_descriptor(Bytes file, std::string_view kernel) {
  Elf64_Ehdr header;
  if (!read_piece(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return {};
  const std::optional<uint64_t> address = find_descriptor(file, header, kernel);
  const std::optional<uint64_t> at = address ? file_offset(file, header, *address) : std::nullopt;
  if (!at || !file_piece(file, *at, kDescriptorBytes)) return {};
  AmdKernelDescriptor d;
  d.address = *address;
  uint64_t entry = 0;
  read_piece(file, *at, d.lds_bytes);
  read_piece(file, *at + 4, d.scratch_bytes);
  read_piece(file, *at + 8, d.kernarg_bytes);
  read_piece(file, *at + 16, entry);
  read_piece(file, *at + 44, d.resources3);
  read_piece(file, *at + 48, d.resources1);
  read_piece(file, *at + 52, d.resources2);
  read_piece(file, *at + 56, d.properties);
  read_piece(file, *at + 58, d.preloaded_arguments);
  d.entry = d.address + entry;
  return d;
}

bool has_packed_work_items(std::string_view arch) {
  return std::any_of(kPacked.begin(), kPacked.end(),
                     [&](std::string_view family) { return arch.starts_with(family); });
}

AmdInitialRegisters read_amd_initial_registers(Bytes file, std::string_view arch) {
  const std::optional<AmdKernelDescriptor> descriptor = read_amd_kernel_descriptor(file);
  if (!descriptor) return {};
  const uint32_t resources = descriptor->resources2;
  const auto bits = [&](int first, int count) {
    return static_cast<int>(resources >> first & ((1U << count) - 1));
  };
  AmdInitialRegisters registers;
  registers.scalars = bits(1, 5);  // the user's
  // Then three numbers of the workgroup and its size, which gfx12 has elsewhere, and where scratch
  // begins.
  if (!arch.starts_with("gfx12"))
    registers.scalars += bits(7, 1) + bits(8, 1) + bits(9, 1) + bits(10, 1);
  registers.scalars += bits(0, 1);
  registers.vectors = has_packed_work_items(arch) ? 1 : 1 + bits(11, 2);
  return registers;
}

}  // namespace fulmen::gpu
