#include "gpu/compile/report/amd_descriptor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "gpu/compile/report/elf.h"
#include "runtime/file_piece.h"

namespace fulmen::gpu {
namespace {

using Bytes = std::span<const std::byte>;

// hsa_kernel_descriptor_t: LLVM's "User Guide for AMDGPU Backend", Kernel Descriptor.
constexpr uint64_t kDescriptorBytes = 64;

constexpr std::array<std::string_view, 5> kPacked{"gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"};

// Where the file has an address of the loaded object.
std::optional<uint64_t> file_offset(Bytes file, const elf::Header& header, uint64_t address) {
  for (uint64_t i = 0; i < header.segments; ++i) {
    elf::Segment segment;
    if (!read_piece(file, header.segments_at + i * sizeof segment, segment)) return {};
    if (segment.type != elf::kLoad || address < segment.address ||
        address - segment.address >= segment.file_bytes)
      continue;
    return segment.offset + (address - segment.address);
  }
  return {};
}

// The address of the symbol "<kernel>.kd"; of the first that ends in ".kd" where no kernel is
// named.
std::optional<uint64_t> find_descriptor(Bytes file, const elf::Header& header,
                                        std::string_view kernel) {
  for (uint64_t i = 0; i < header.sections; ++i) {
    elf::Section table, names;
    if (!read_piece(file, header.sections_at + i * sizeof table, table)) return {};
    if (table.type != elf::kDynamicSymbols && table.type != elf::kSymbols) continue;
    if (!read_piece(file, header.sections_at + uint64_t{table.link} * sizeof names, names))
      return {};
    const std::optional<Bytes> text = file_piece(file, names.offset, names.bytes);
    if (!text) return {};
    const std::string_view all(reinterpret_cast<const char*>(text->data()), text->size());
    const uint64_t symbols = std::min<uint64_t>(table.bytes, file.size()) / sizeof(elf::Symbol);
    for (uint64_t s = 0; s < symbols; ++s) {
      elf::Symbol symbol;
      if (!read_piece(file, table.offset + s * sizeof symbol, symbol) || symbol.name >= all.size())
        return {};
      std::string_view name = all.substr(symbol.name);
      name = name.substr(0, name.find('\0'));
      if (!name.ends_with(".kd")) continue;
      name.remove_suffix(3);
      if (kernel.empty() || name == kernel) return symbol.value;
    }
  }
  return {};
}

}  // namespace

std::optional<AmdKernelDescriptor> read_amd_kernel_descriptor(Bytes file, std::string_view kernel) {
  elf::Header header;
  if (!read_piece(file, 0, header) || !header.is_elf()) return {};
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
