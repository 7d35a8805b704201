#include "tools/files/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "fulmen/printable.h"
#include "fulmen/read_file.h"

namespace fulmen::tools {
namespace {

// Names of temporary files that a signal's handler removes. The table has more places than one
// command has files.
std::array<std::atomic<char*>, 16> unfinished{};

void remove_unfinished(int signal) {
  for (const std::atomic<char*>& name : unfinished) {
    if (const char* path = name.load(); path != nullptr) ::unlink(path);
  }
  ::raise(signal);  // SA_RESETHAND: the default action now
}

// A signal that is ignored (nohup), or handled by somebody else, stays so.
void watch_signals() {
  struct sigaction ours{};
  ours.sa_handler = remove_unfinished;
  ours.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      ::sigaction(signal, &ours, nullptr);
  }
}

void remember(char* path) {
  watch_signals();
  for (std::atomic<char*>& name : unfinished) {
    char* none = nullptr;
    if (name.compare_exchange_strong(none, path)) return;
  }
}

void forget(const char* path) {
  for (std::atomic<char*>& name : unfinished) {
    if (name.load() == path) name = nullptr;
  }
}

// Returns the target of a symbolic link, even if nothing is there yet.
std::filesystem::path followed(std::filesystem::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;
  }
  return path;
}

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto name = [&](const std::string& path) {
    const std::filesystem::path whole = std::filesystem::absolute(followed(path), error);
    return std::filesystem::weakly_canonical(whole.parent_path(), error) / whole.filename();
  };
  return name(a) == name(b);
}

OutputFile::OutputFile(std::string path, std::unique_ptr<char[]> temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (temporary_ == nullptr) return;
  ::unlink(temporary_.get());
  forget(temporary_.get());
}

Result<OutputFile> OutputFile::create(const std::string& asked) {
  const auto cannot = [&](const char* why) {
    return Status{StatusCode::unavailable,
                  fmt::format("cannot write '{}': {}", printable(asked), why)};
  };
  if (asked == "-")
    return cannot(
        "results go to files, not to the standard output: give a name (./- for this one)");
  const std::filesystem::path target = followed(asked);
  const std::string path = target.string();
  struct stat existing{};
  const bool exists = ::stat(path.c_str(), &existing) == 0;
  if (!exists && errno != ENOENT) return cannot(std::strerror(errno));
  if (path.empty() || (exists && !S_ISREG(existing.st_mode)))
    return cannot("it is not a regular file's name");
  // Short: the target's may be as long as names get.
  const std::string pattern = (target.parent_path() / "fulmen.XXXXXX").string();
  auto temporary = std::make_unique<char[]>(pattern.size() + 1);
  std::memcpy(temporary.get(), pattern.c_str(), pattern.size() + 1);
  const int descriptor = ::mkstemp(temporary.get());
  if (descriptor < 0) return cannot(std::strerror(errno));
  remember(temporary.get());
  // mkstemp makes a private file; the result should look like any other new file, or keep the mode
  // of the one it replaces.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  /* The private mode is usable, too. */
  if (::fchmod(descriptor, exists ? existing.st_mode & 07777 : 0666 & ~mask) != 0) {
  }
  return OutputFile{path, std::move(temporary), descriptor};
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return {StatusCode::unavailable,
              fmt::format("cannot write '{}': {}", printable(path_), std::strerror(errno))};
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status OutputFile::commit() {
  // close() is where a full network disk reports its error.
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 || ::rename(temporary_.get(), path_.c_str()) != 0) {
    return {StatusCode::unavailable,
            fmt::format("cannot write '{}': {}", printable(path_), std::strerror(errno))};
  }
  forget(temporary_.get());
  temporary_.reset();
  return {};
}

Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  const Result<OutputFile> file = OutputFile::create(path);
  return file.ok() ? Status{} : file.status();
}

Status flush_standard_output() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return {};
  return {StatusCode::unavailable,
          fmt::format("cannot write the standard output: {}",
                      errno != 0 ? std::strerror(errno) : "it is full or closed")};
}

Result<std::string> read_text_file(const char* option, const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{256} << 20;
  const auto failure = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} {}: it cannot be read: {}", option, printable(path), why));
  };
  std::error_code error;
  if (!std::filesystem::is_fifo(path, error)) {
    const Result<std::optional<std::string>> text =
        read_regular_file(path, kMostBytes, FileTrust::given);
    if (text.ok() && *text) return **text;
    return failure(text.ok() ? "there is no such file" : text.status().message());
  }
  std::ifstream pipe(path, std::ios::binary);
  std::string text;
  for (std::array<char, 65536> part; pipe && text.size() <= kMostBytes;) {
    pipe.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(pipe.gcount()));
  }
  if (text.size() > kMostBytes) return failure(fmt::format("more than {} bytes", kMostBytes));
  return text;
}

Status write_text_file(const std::string& path, const std::string& text) {
  Result<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  if (Status status = file->write(std::as_bytes(std::span(text))); !status.ok()) return status;
  return file->commit();
}

}  // namespace fulmen::tools
