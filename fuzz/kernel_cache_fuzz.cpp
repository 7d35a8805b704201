// Any bytes given as a file of the kernel cache are refused with a sentence, or are a file that is
// written back the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "gpu/compile/cache/cache_file.h"

namespace {

void check(std::span<const std::byte> bytes) {
  const auto header = fulmen::gpu::parse_cache_header(bytes, bytes.size());
  const auto file = fulmen::gpu::parse_cache_file(bytes);
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return;
  }
  if (!header.ok() || header.value().name != file.value().name) std::abort();
  const std::vector<std::byte> again = fulmen::gpu::write_cache_file(file.value());
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  // The same with a right checksum, as an attacker would write it.
  const fulmen::gpu::Digest checksum = fulmen::gpu::sha256(bytes);
  std::vector<std::byte> signed_bytes(bytes.begin(), bytes.end());
  const auto end = std::as_bytes(std::span(checksum));
  signed_bytes.insert(signed_bytes.end(), end.begin(), end.end());
  check(signed_bytes);
  return 0;
}
