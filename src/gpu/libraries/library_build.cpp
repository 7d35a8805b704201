#include "gpu/libraries/library_build.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>

#include "runtime/fork_safe.h"
#include "runtime/platform/files.h"

namespace fulmen::gpu {
namespace {

using platform::LoadedLibrary;

std::string build_id_of(const LoadedLibrary& library) {
  for (const LoadedLibrary::Notes& notes : library.notes()) {
    std::string id = build_id_in(notes.bytes, notes.alignment);
    if (!id.empty()) return id;
  }
  return {};
}

std::string build_of(const LoadedLibrary& library) {
  const std::string id = build_id_of(library);
  return id.empty() ? file_build(library.path()) : fmt::format("build {}", id);
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
  const std::string real = std::filesystem::canonical(platform::long_path(path), error).string();
  if (error) return {};
  const auto facts = platform::facts_of(real, platform::Links::followed, error);
  if (!facts) return {};
  return fmt::format("{} {} {}.{:09}", real, facts->bytes, facts->seconds, facts->nanoseconds);
}

std::string library_build(const void* address) {
  std::string build;
  visit_libraries([&](const LoadedLibrary& library) {
    if (!library.holds(address)) return false;
    build = build_of(library);
    return true;
  });
  return build;
}

std::string builds_of_loaded(std::string_view name) {
  std::set<std::string> builds;
  visit_libraries([&](const LoadedLibrary& library) {
    const std::string file = std::filesystem::path(library.path()).filename().string();
    if (file.starts_with(name)) builds.insert(fmt::format("{} {}", file, build_of(library)));
    return false;
  });
  return fmt::format("{}", fmt::join(builds, " "));
}

}  // namespace fulmen::gpu
