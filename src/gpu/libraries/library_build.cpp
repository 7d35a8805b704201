#include "gpu/libraries/library_build.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>

#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

using Header = ElfW(Phdr);

std::span<const Header> headers(const dl_phdr_info& library) {
  return {library.dlpi_phdr, library.dlpi_phnum};
}

// Returns true if [begin, begin + bytes) of the library's own addresses is mapped and readable.
bool is_mapped(const dl_phdr_info& library, std::uintptr_t begin, std::size_t bytes) {
  for (const Header& h : headers(library)) {
    if (h.p_type != PT_LOAD || (h.p_flags & PF_R) == 0 || begin < h.p_vaddr) continue;
    // Only the file's bytes count: those after them are zero, and no notes.
    const std::uintptr_t at = begin - h.p_vaddr;
    if (at <= h.p_filesz && bytes <= h.p_filesz - at) return true;
  }
  return false;
}

std::string build_id_of(const dl_phdr_info& library) {
  for (const Header& h : headers(library)) {
    if (h.p_type != PT_NOTE || !is_mapped(library, h.p_vaddr, h.p_filesz)) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
    const auto* notes = reinterpret_cast<const std::byte*>(library.dlpi_addr + h.p_vaddr);
    std::string id = build_id_in({notes, h.p_filesz}, h.p_align == 8 ? 8 : 4);
    if (!id.empty()) return id;
  }
  return {};
}

std::string build_of(const dl_phdr_info& library) {
  const std::string id = build_id_of(library);
  return id.empty() ? file_build(library.dlpi_name) : fmt::format("build {}", id);
}

// Calls visit(const dl_phdr_info&) for each loaded library until it returns true.
template <class Visit>
void visit_loaded(Visit visit) {
  visit_libraries([](dl_phdr_info* info, std::size_t,
                     void* call) { return (*static_cast<Visit*>(call))(*info) ? 1 : 0; },
                  &visit);
}

bool holds(const dl_phdr_info& library, std::uintptr_t address) {
  for (const Header& h : headers(library)) {
    const std::uintptr_t begin = library.dlpi_addr + h.p_vaddr;
    if (h.p_type == PT_LOAD && address >= begin && address - begin < h.p_memsz) return true;
  }
  return false;
}

}  // namespace

std::string build_id_in(std::span<const std::byte> notes, std::size_t alignment) {
  // Three words: bytes of the name, bytes of what it describes, type.
  constexpr std::size_t kHeader = 12;
  constexpr std::uint32_t kBuildId = 3;
  constexpr std::string_view kOwner("GNU\0", 4);
  // 64 bits, so that no sum of damaged 32-bit sizes wraps.
  const auto padded = [&](std::uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  for (std::uint64_t at = 0; at + kHeader <= notes.size();) {
    std::uint32_t words[3];
    std::memcpy(words, notes.data() + at, sizeof(words));
    const auto [name_bytes, bytes, type] = words;
    const std::uint64_t name = at + kHeader,
                        value = at + padded(kHeader + std::uint64_t{name_bytes});
    if (value > notes.size() || bytes > notes.size() - value) return {};
    const std::string_view owner(reinterpret_cast<const char*>(notes.data() + name), name_bytes);
    if (type == kBuildId && owner == kOwner && bytes > 0) {
      std::string id;
      for (const std::byte b : notes.subspan(value, bytes))
        id += fmt::format("{:02x}", std::to_integer<unsigned>(b));
      return id;
    }
    at = value + padded(bytes);
  }
  return {};
}

std::string file_build(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  struct stat info{};
  if (error || stat(real.c_str(), &info) != 0) return {};
  return fmt::format("{} {} {}.{:09}", real.string(), info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

std::string library_build(const void* address) {
  std::string build;
  visit_loaded([&](const dl_phdr_info& library) {
    if (!holds(library, reinterpret_cast<std::uintptr_t>(address))) return false;
    build = build_of(library);
    return true;
  });
  return build;
}

std::string builds_of_loaded(std::string_view name) {
  std::set<std::string> builds;
  visit_loaded([&](const dl_phdr_info& library) {
    const std::string file = std::filesystem::path(library.dlpi_name).filename().string();
    if (file.starts_with(name)) builds.insert(fmt::format("{} {}", file, build_of(library)));
    return false;
  });
  return fmt::format("{}", fmt::join(builds, " "));
}

}  // namespace fulmen::gpu
