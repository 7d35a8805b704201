// One kernel in a file: a header of text lines, then the log, then the code, all under a checksum.
//   "fulmen-kernel 1\n" <sha256 of all that follows, hex> "\n" key "\n" arch "\n" name "\n" <log bytes> " " <code bytes> "\n" log
//   code
#pragma once

#include <span>
#include <string>

#include "fulmen/status.h"
#include "gpu/compile/compiler.h"

namespace fulmen::gpu {

struct CacheFile {
  std::string key, arch, name;
  CompiledCode compiled;
};

std::string encode(const CacheFile& file);
// Errors: says what is damaged. Reads any bytes.
Result<CacheFile> decode(std::span<const std::byte> bytes);

}  // namespace fulmen::gpu
