#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fulmen::tools {

OutputFile::OutputFile(std::string path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  struct stat existing{};
  const bool exists = ::stat(path.c_str(), &existing) == 0;
  if (path.empty() || (exists && !S_ISREG(existing.st_mode))) {
    return Status{StatusCode::unavailable, fmt::format("cannot write '{}': it is not a regular file's name", path)};
  }
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) return Status{StatusCode::unavailable, fmt::format("cannot write '{}': {}", path, std::strerror(errno))};
  // mkstemp makes a private file; the result should look like any other new file, or keep the mode of the one it replaces.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(descriptor, exists ? existing.st_mode & 07777 : 0666 & ~mask) != 0) { /* the private mode is usable, too */
  }
  return OutputFile{path, std::move(temporary), descriptor};
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return {StatusCode::unavailable, fmt::format("cannot write '{}': {}", path_, std::strerror(errno))};
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status OutputFile::commit() {
  // close() is where a full network disk reports its error.
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return {StatusCode::unavailable, fmt::format("cannot write '{}': {}", path_, std::strerror(errno))};
  }
  temporary_.clear();
  return {};
}

Status write_text_file(const std::string& path, const std::string& text) {
  Result<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  if (Status status = file->write(std::as_bytes(std::span(text))); !status.ok()) return status;
  return file->commit();
}

}  // namespace fulmen::tools
