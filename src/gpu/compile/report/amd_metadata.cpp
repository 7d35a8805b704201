#include "gpu/compile/report/amd_metadata.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>

#include "gpu/compile/report/elf.h"
#include "gpu/compile/report/message_pack.h"
#include "runtime/file_piece.h"

namespace fulmen::gpu {
namespace {

using Bytes = std::span<const std::byte>;
using Kind = MessagePackReader::Kind;
using Token = MessagePackReader::Token;

constexpr uint32_t kMetadataNote = 32;  // NT_AMDGPU_METADATA
constexpr char kOwner[] = "AMDGPU";     // the note's owner, with its NUL

Status malformed(const char* what) { return {StatusCode::invalid_argument, what}; }

// The metadata among a section's notes.
std::optional<Bytes> find_note(Bytes notes) {
  uint64_t at = 0;
  for (elf::Note note; read_piece(notes, at, note);) {
    const uint64_t name_at = at + sizeof note,
                   text_at = name_at + (uint64_t{note.name_bytes} + 3) / 4 * 4;
    const std::optional<Bytes> name = file_piece(notes, name_at, note.name_bytes),
                               text = file_piece(notes, text_at, note.bytes);
    if (!name || !text) return {};
    const bool ours = note.type == kMetadataNote && name->size() == sizeof kOwner &&
                      std::memcmp(name->data(), kOwner, sizeof kOwner) == 0;
    if (ours) return text;
    at = text_at + (uint64_t{note.bytes} + 3) / 4 * 4;
  }
  return {};
}

Result<Bytes> find_metadata(Bytes file) {
  elf::Header header;
  if (!read_piece(file, 0, header) || !header.is_elf()) return malformed("no ELF file");
  if (!header.is_64_bits_little_endian()) {
    return malformed("no 64-bit little-endian ELF file");
  }
  for (uint64_t i = 0; i < header.sections; ++i) {
    elf::Section section;
    if (!read_piece(file, header.sections_at + i * sizeof section, section))
      return malformed("its sections are cut off");
    if (section.type != elf::kNotes) continue;
    const std::optional<Bytes> notes = file_piece(file, section.offset, section.bytes);
    if (!notes) return malformed("its notes are cut off");
    if (const std::optional<Bytes> found = find_note(*notes)) return *found;
  }
  return malformed("no AMDGPU metadata in it");
}

struct Field {
  std::string_view key;
  int64_t AmdKernelMetadata::* member;
};
constexpr std::array kFields{
    Field{".vgpr_count", &AmdKernelMetadata::vector_registers},
    Field{".agpr_count", &AmdKernelMetadata::accumulators},
    Field{".sgpr_count", &AmdKernelMetadata::scalar_registers},
    Field{".vgpr_spill_count", &AmdKernelMetadata::vector_spills},
    Field{".sgpr_spill_count", &AmdKernelMetadata::scalar_spills},
    Field{".private_segment_fixed_size", &AmdKernelMetadata::scratch_bytes},
    Field{".group_segment_fixed_size", &AmdKernelMetadata::lds_bytes},
    Field{".kernarg_segment_size", &AmdKernelMetadata::argument_bytes},
    Field{".max_flat_workgroup_size", &AmdKernelMetadata::max_workgroup_size},
    Field{".wavefront_size", &AmdKernelMetadata::wave_size}};

// Reads a map; `take` gets each key and leaves its value read, or says false to have it passed
// over. False: malformed.
template <class Take>
bool read_map(MessagePackReader& reader, Take take) {
  Token map;
  if (!reader.next(map) || map.kind != Kind::map) return false;
  for (int64_t i = 0; i < map.value; ++i) {
    Token key;
    if (!reader.next(key) || key.kind != Kind::text) return false;
    bool good = true;
    if (!take(key.text, good)) good = reader.skip();
    if (!good) return false;
  }
  return true;
}

bool read_argument(MessagePackReader& reader, AmdArgument& argument) {
  return read_map(reader, [&](std::string_view key, bool& good) {
    Token value;
    if (key == ".value_kind") {
      good = reader.next(value) && value.kind == Kind::text;
      argument.kind = value.text;
    } else if (key == ".offset" || key == ".size") {
      good = reader.next(value) && value.kind == Kind::integer;
      (key == ".offset" ? argument.offset : argument.bytes) = value.value;
    } else {
      return false;
    }
    return true;
  });
}

bool read_kernel(MessagePackReader& reader, AmdKernelMetadata& kernel) {
  return read_map(reader, [&](std::string_view key, bool& good) {
    Token value;
    if (key == ".args") {
      good = reader.next(value) && value.kind == Kind::array;
      for (int64_t i = 0; good && i < value.value; ++i)
        good = read_argument(reader, kernel.arguments.emplace_back());
      return true;
    }
    if (key == ".name") {
      good = reader.next(value) && value.kind == Kind::text;
      kernel.name = value.text;
      return true;
    }
    for (const Field& field : kFields) {
      if (field.key != key) continue;
      good = reader.next(value) && value.kind == Kind::integer;
      kernel.*field.member = value.value;
      return true;
    }
    return false;
  });
}

}  // namespace

Result<std::vector<AmdKernelMetadata>> read_amd_metadata(Bytes code_object) {
  const Result<Bytes> metadata = find_metadata(code_object);
  if (!metadata.ok()) return metadata.status();
  MessagePackReader reader(metadata.value());
  std::vector<AmdKernelMetadata> kernels;
  std::string target;
  const bool whole = read_map(reader, [&](std::string_view key, bool& good) {
    Token value;
    if (key == "amdhsa.target") {
      good = reader.next(value) && value.kind == Kind::text;
      target = value.text;
      return true;
    }
    if (key != "amdhsa.kernels") return false;
    good = reader.next(value) && value.kind == Kind::array;
    for (int64_t i = 0; good && i < value.value; ++i)
      good = read_kernel(reader, kernels.emplace_back());
    return true;
  });
  if (!whole) return malformed("its AMDGPU metadata is malformed");
  for (AmdKernelMetadata& kernel : kernels) kernel.target = target;
  return kernels;
}

Status check_wave_size(Bytes code_object, int lanes) {
  const Result<std::vector<AmdKernelMetadata>> kernels = read_amd_metadata(code_object);
  if (!kernels.ok()) return {};
  for (const AmdKernelMetadata& kernel : kernels.value()) {
    if (kernel.wave_size == 0 || kernel.wave_size == lanes) continue;
    return {
        StatusCode::internal,
        fmt::format(
            "the compiler made {} for waves of {} lanes; its source is for {}. Options from the "
            "environment (HIPRTC_COMPILE_OPTIONS_APPEND, CCC_OVERRIDE_OPTIONS) can do that",
            kernel.name, kernel.wave_size, lanes)};
  }
  return {};
}

}  // namespace fulmen::gpu
