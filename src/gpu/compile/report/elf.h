// The parts of a 64-bit ELF file that are read of code objects: not every system has <elf.h>.
#pragma once

#include <cstdint>
#include <cstring>

namespace fulmen::gpu::elf {

struct Header {
  unsigned char ident[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, segments_at, sections_at;
  uint32_t flags;
  uint16_t header_bytes, segment_bytes, segments, section_bytes, sections, section_names;

  bool is_elf() const {
    return std::memcmp(ident,
                       "\x7f"
                       "ELF",
                       4) == 0;
  }
  bool is_64_bits_little_endian() const { return ident[4] == 2 && ident[5] == 1; }
};
static_assert(sizeof(Header) == 64);

inline constexpr uint32_t kLoad = 1;  // a segment's type
struct Segment {
  uint32_t type, flags;
  uint64_t offset, address, physical_address, file_bytes, memory_bytes, alignment;
};
static_assert(sizeof(Segment) == 56);

// A section's type, and a flag.
inline constexpr uint32_t kProgram = 1, kSymbols = 2, kNotes = 7, kDynamicSymbols = 11;
inline constexpr uint64_t kExecutable = 4;
struct Section {
  uint32_t name, type;
  uint64_t flags, address, offset, bytes;
  uint32_t link, info;
  uint64_t alignment, entry_bytes;
};
static_assert(sizeof(Section) == 64);

struct Symbol {
  uint32_t name;
  unsigned char info, other;
  uint16_t section;
  uint64_t value, bytes;
};
static_assert(sizeof(Symbol) == 24);

struct Note {
  uint32_t name_bytes, bytes, type;
};

}  // namespace fulmen::gpu::elf
