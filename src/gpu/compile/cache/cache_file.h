// The file of one compiled kernel: fixed header, name, arch, code, log, and the SHA-256 of all
// that. Integers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fulmen/status.h"
#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::gpu {

struct CacheFile {
  Digest key{};  // of what the code was made from
  std::string name, arch;
  CompiledCode compiled;
};

std::vector<std::byte> write_cache_file(const CacheFile& file);
// Any bytes are safe. Errors: too short, another program's or version's file, lengths that do not
// fit, a wrong checksum, more than kMaxCacheFileBytes.
Result<CacheFile> parse_cache_file(std::span<const std::byte> bytes);

// What listings need, from the first kCacheListingBytes of a file of file_bytes; the checksum is
// not looked at.
struct CacheFileHeader {
  Digest key{};
  std::string name, arch;
  std::size_t code_bytes = 0, log_bytes = 0;
};
inline constexpr std::size_t kCacheListingBytes = 4096;
// Size limit of a file. The largest kernel has a few hundred KiB; a file that states a greater size
// is damaged, and no memory is asked for.
inline constexpr uint64_t kMaxCacheFileBytes = uint64_t{256} << 20;
// Several files one after another, as a pack has them. Errors: those of parse_cache_file, with the
// byte where the file begins.
Result<std::vector<CacheFile>> parse_cache_files(std::span<const std::byte> bytes);
Result<CacheFileHeader> parse_cache_header(std::span<const std::byte> start, uint64_t file_bytes);

}  // namespace fulmen::gpu
