#include "gpu/compile/cache/cache_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fulmen::gpu {
namespace {

// The number after the name is the format's version.
constexpr std::string_view kMagic = "fulmen kernel 1\n";
constexpr std::size_t kHeaderBytes = 16 + 32 + 4 * 4;  // magic, key, four lengths
// The longest name and arch: both are in the first kCacheListingBytes.
constexpr std::size_t kMaxText = 1024;

void put_length(std::vector<std::byte>& out, std::size_t length) {
  for (unsigned shift = 0; shift < 32; shift += 8)
    out.push_back(static_cast<std::byte>(length >> shift));
}

std::size_t length_at(std::span<const std::byte> bytes, std::size_t at) {
  std::size_t length = 0;
  for (std::size_t i = 4; i-- > 0;)
    length = length << 8U | std::to_integer<std::size_t>(bytes[at + i]);
  return length;
}

void put(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
void put(std::vector<std::byte>& out, std::string_view text) {
  put(out, std::as_bytes(std::span(text)));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The size of the file that begins there, by its header's lengths; of what is too short for a
// header, its own.
uint64_t file_bytes_of(std::span<const std::byte> start) {
  if (start.size() < kHeaderBytes) return start.size();
  uint64_t bytes = kHeaderBytes + sizeof(Digest);
  for (std::size_t i = 0; i < 4; ++i)
    bytes += length_at(start, kMagic.size() + sizeof(Digest) + 4 * i);
  return bytes;
}

Status damaged(const char* why) { return {StatusCode::invalid_argument, why}; }

}  // namespace

std::vector<std::byte> write_cache_file(const CacheFile& file) {
  const std::string_view name = std::string_view(file.name).substr(0, kMaxText);
  const std::string_view arch = std::string_view(file.arch).substr(0, kMaxText);
  std::vector<std::byte> out;
  out.reserve(kHeaderBytes + name.size() + arch.size() + file.compiled.code.size() +
              file.compiled.log.size() + sizeof(Digest));
  put(out, kMagic);
  put(out, std::as_bytes(std::span(file.key)));
  for (const std::size_t length :
       {name.size(), arch.size(), file.compiled.code.size(), file.compiled.log.size()}) {
    put_length(out, length);
  }
  put(out, name);
  put(out, arch);
  put(out, file.compiled.code);
  put(out, file.compiled.log);
  const Digest checksum = sha256(out);
  put(out, std::as_bytes(std::span(checksum)));
  return out;
}

Result<CacheFileHeader> parse_cache_header(std::span<const std::byte> start, uint64_t file_bytes) {
  if (start.size() < kHeaderBytes || text_of(start.first(kMagic.size())) != kMagic)
    return damaged("no kernel of this version");
  CacheFileHeader header;
  std::memcpy(header.key.data(), start.data() + kMagic.size(), sizeof header.key);
  std::size_t length[4];
  for (std::size_t i = 0; i < 4; ++i)
    length[i] = length_at(start, kMagic.size() + sizeof(Digest) + 4 * i);
  const auto [name, arch, code, log] = length;
  if (file_bytes > kMaxCacheFileBytes) return damaged("it is larger than any kernel");
  if (name > kMaxText || arch > kMaxText) return damaged("a name is too long");
  if (kHeaderBytes + uint64_t{name} + arch + code + log + sizeof(Digest) != file_bytes)
    return damaged("its length is wrong");
  if (kHeaderBytes + name + arch > start.size()) return damaged("it is cut off");
  header.name = text_of(start.subspan(kHeaderBytes, name));
  header.arch = text_of(start.subspan(kHeaderBytes + name, arch));
  header.code_bytes = code;
  header.log_bytes = log;
  return header;
}

Result<CacheFile> parse_cache_file(std::span<const std::byte> bytes) {
  Result<CacheFileHeader> header = parse_cache_header(bytes, bytes.size());
  if (!header.ok()) return header.status();
  const Digest checksum = sha256(bytes.first(bytes.size() - sizeof(Digest)));
  if (std::memcmp(checksum.data(), bytes.last(sizeof(Digest)).data(), sizeof(Digest)) != 0)
    return damaged("its checksum is wrong");
  const std::size_t code_at = kHeaderBytes + header->name.size() + header->arch.size();
  const auto code = bytes.subspan(code_at, header->code_bytes);
  CacheFile file{header->key, std::move(header->name), std::move(header->arch), {}};
  file.compiled.code.assign(code.begin(), code.end());
  file.compiled.log = text_of(bytes.subspan(code_at + code.size(), header->log_bytes));
  return file;
}

Result<std::vector<CacheFile>> parse_cache_files(std::span<const std::byte> bytes) {
  std::vector<CacheFile> files;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto rest = bytes.subspan(at);
    Result<CacheFile> file =
        parse_cache_file(rest.first(std::min<uint64_t>(file_bytes_of(rest), rest.size())));
    if (!file.ok())
      return Status(StatusCode::invalid_argument,
                    fmt::format("at byte {}: {}", at, file.status().message()));
    at += static_cast<std::size_t>(file_bytes_of(rest));
    files.push_back(std::move(file).value());
  }
  return files;
}

}  // namespace fulmen::gpu
