#include "gpu/compile/cache_file.h"

#include <fmt/format.h>

#include <charconv>

#include "gpu/compile/sha256.h"

namespace fulmen::gpu {
namespace {

constexpr std::string_view kMagic = "fulmen-kernel 1";

bool take_line(std::string_view& rest, std::string_view& line) {
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) return false;
  line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return true;
}

bool parse(std::string_view digits, std::size_t& value) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size();
}

Status damaged(const char* what) { return {StatusCode::invalid_argument, what}; }

}  // namespace

std::string encode(const CacheFile& file) {
  const std::string_view code(reinterpret_cast<const char*>(file.compiled.code.data()), file.compiled.code.size());
  const std::string body = fmt::format("{}\n{}\n{}\n{} {}\n{}{}", file.key, file.arch, file.name, file.compiled.log.size(),
                                       code.size(), file.compiled.log, code);
  return fmt::format("{}\n{}\n{}", kMagic, hex(sha256(body)), body);
}

Result<CacheFile> decode(std::span<const std::byte> bytes) {
  std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string_view magic, checksum, key, arch, name, sizes;
  if (!take_line(rest, magic) || magic != kMagic) return damaged("it is no kernel of this version");
  if (!take_line(rest, checksum)) return damaged("it ends in the checksum");
  if (checksum != hex(sha256(rest))) return damaged("its checksum is wrong");
  if (!take_line(rest, key) || !take_line(rest, arch) || !take_line(rest, name) || !take_line(rest, sizes)) {
    return damaged("its header is not whole");
  }
  std::size_t log = 0, code = 0;
  const std::size_t space = sizes.find(' ');
  if (space == std::string_view::npos || !parse(sizes.substr(0, space), log) || !parse(sizes.substr(space + 1), code) ||
      log > rest.size() || code != rest.size() - log) {
    return damaged("its sizes are wrong");
  }
  CacheFile file{std::string(key), std::string(arch), std::string(name), {}};
  file.compiled.log = rest.substr(0, log);
  const auto body = bytes.last(code);
  file.compiled.code.assign(body.begin(), body.end());
  return file;
}

}  // namespace fulmen::gpu
