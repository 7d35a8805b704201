// Tells which build of a vendor's library a process has loaded: version calls give one number for
// many builds.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace fulmen::gpu {

// Returns "build 1a2b...", the build id of the loaded library that holds the address. Without an
// id: the file's real path, size and time of change. Empty where no library holds the address. Only
// mapped memory is read, and the file where there is no id.
std::string library_build(const void* address);

// The builds of all loaded libraries whose file names begin so ("libamd_comgr"), in alphabetical
// order, separated by " ".
std::string builds_of_loaded(std::string_view name);

// A file's real path, size and time of change; empty where it cannot be asked.
std::string file_build(const std::string& path);

// The build id among an ELF's notes, in hexadecimal; empty where there is none or the notes are
// damaged. alignment: 4 or 8.
std::string build_id_in(std::span<const std::byte> notes, std::size_t alignment);

}  // namespace fulmen::gpu
