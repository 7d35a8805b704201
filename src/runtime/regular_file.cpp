#include "runtime/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace fulmen {
namespace {

Status failure(const std::string& why) { return {StatusCode::unavailable, why}; }

}  // namespace

Result<std::optional<RegularFile>> RegularFile::open(const std::string& path, FileTrust trust) {
  const int descriptor = ::open(
      path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (trust == FileTrust::own ? O_NOFOLLOW : 0));
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<RegularFile>();
    return failure(std::generic_category().message(errno));
  }
  struct stat info{};
  const bool is_regular = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  RegularFile file(descriptor, is_regular ? static_cast<std::size_t>(info.st_size) : 0);
  if (!is_regular) return failure("no regular file");
  if (trust == FileTrust::own && info.st_uid != ::geteuid()) return failure("another user's file");
  if (trust == FileTrust::own && (info.st_mode & 022) != 0) return failure("others can write it");
  return std::optional(std::move(file));
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t RegularFile::read_start(void* to, std::size_t limit) const {
  std::size_t have = 0;
  while (have < limit) {
    const ssize_t count =
        ::pread(descriptor_, static_cast<char*>(to) + have, limit - have, static_cast<off_t>(have));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    have += static_cast<std::size_t>(count);
  }
  return have;
}

Result<std::optional<std::string>> read_regular_file(const std::string& path,
                                                     std::size_t most_bytes, FileTrust trust) {
  try {
    const Result<std::optional<RegularFile>> file = RegularFile::open(path, trust);
    if (!file.ok()) return file.status();
    if (!*file) return std::optional<std::string>();
    const RegularFile& found = **file;
    if (found.bytes() > most_bytes)
      return failure(fmt::format("it has {} bytes, up to {} are read", found.bytes(), most_bytes));
    auto text = found.read<std::string>(found.bytes());
    if (text.size() < found.bytes()) return failure("it cannot be read");
    return std::optional(std::move(text));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for it");
  }
}

}  // namespace fulmen
