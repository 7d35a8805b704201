// Which build of a vendor's library a process has loaded: version calls give one number for many builds.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace fulmen::gpu {

// "build 1a2b...", the build id of the loaded library that holds the address. Where it has none: the file's real path, size and
// time of change. Empty where no library holds it. Reads what is mapped; the file only where there is no build id.
std::string library_build(const void* address);

// The same of all loaded libraries whose files' names begin so ("libamd_comgr"), in alphabetical order, " " between.
std::string builds_of_loaded(std::string_view name);

// A file's real path, size and time of change; empty where it cannot be asked.
std::string file_build(const std::string& path);

// The build id among an ELF's notes, in hexadecimal; empty where there is none or the notes are damaged. alignment: 4 or 8.
std::string build_id_in(std::span<const std::byte> notes, std::size_t alignment);

}  // namespace fulmen::gpu
