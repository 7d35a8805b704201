#include "runtime/platform/files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "runtime/platform/posix/change_time.h"
#include "runtime/platform/system.h"

namespace fulmen::platform {
namespace {

std::error_code last_error() noexcept { return {errno, std::generic_category()}; }

FileFacts facts_in(const struct stat& info) {
  const timespec change = change_time(info);
  return {.is_regular = S_ISREG(info.st_mode),
          .bytes = static_cast<std::uint64_t>(info.st_size),
          .seconds = change.tv_sec,
          .nanoseconds = change.tv_nsec};
}

int descriptor(std::intptr_t handle) { return static_cast<int>(handle); }

struct stat status_of(std::intptr_t handle) {
  struct stat info{};
  if (::fstat(descriptor(handle), &info) != 0) info = {};
  return info;
}

}  // namespace

std::optional<FileFacts> facts_of(const std::string& path, Links links, std::error_code& error) {
  struct stat info{};
  const int failed =
      links == Links::followed ? ::stat(path.c_str(), &info) : ::lstat(path.c_str(), &info);
  error = failed != 0 ? last_error() : std::error_code();
  return failed != 0 ? std::optional<FileFacts>() : facts_in(info);
}

File File::open(const std::string& path, Links links, std::error_code& error) {
  const int opened = ::open(
      path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kept ? O_NOFOLLOW : 0));
  error = opened < 0 ? last_error() : std::error_code();
  return File(opened);
}

File File::create(std::string& path, std::error_code& error) {
  const int opened = ::mkostemp(path.data(), O_CLOEXEC);
  error = opened < 0 ? last_error() : std::error_code();
  return File(opened);
}

File File::lock(const std::string& path, std::error_code& error) {
  const int opened =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600);
  error = opened < 0 ? last_error() : std::error_code();
  while (opened >= 0 && ::flock(opened, LOCK_EX) != 0 && errno == EINTR) {
  }
  return File(opened);
}

FileFacts File::facts() const { return facts_in(status_of(handle_)); }
bool File::is_this_users() const { return status_of(handle_).st_uid == ::geteuid(); }
bool File::is_writable_by_others() const { return (status_of(handle_).st_mode & 022) != 0; }

std::size_t File::read_start(void* to, std::size_t limit) const {
  std::size_t have = 0;
  while (have < limit) {
    const ssize_t count = ::pread(descriptor(handle_), static_cast<char*>(to) + have, limit - have,
                                  static_cast<off_t>(have));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    have += static_cast<std::size_t>(count);
  }
  return have;
}

std::error_code File::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor(handle_), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return last_error();
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

std::error_code File::close() {
  if (handle_ == kNone) return {};
  return ::close(descriptor(std::exchange(handle_, kNone))) != 0 ? last_error() : std::error_code();
}

void File::set_changed_now() const { ::futimens(descriptor(handle_), nullptr); }

void File::let_readers_of(const std::string& folder) const {
  if (struct stat info{}; ::stat(folder.c_str(), &info) == 0)
    ::fchmod(descriptor(handle_), 0600 | (info.st_mode & 0444));
}

void File::set_permissions_like(const std::string& path) const {
  struct stat existing{};
  const bool exists = ::stat(path.c_str(), &existing) == 0;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  /* The private mode is usable, too. */
  if (::fchmod(descriptor(handle_), exists ? existing.st_mode & 07777 : 0666 & ~mask) != 0) {
  }
}

std::error_code replace_file(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str()) != 0 ? last_error() : std::error_code();
}

std::error_code remove_file(const std::string& path) noexcept {
  return ::unlink(path.c_str()) != 0 ? last_error() : std::error_code();
}

std::error_code make_folder(const std::string& path, Access access) {
  return ::mkdir(path.c_str(), access == Access::own ? 0700 : 0777) != 0 ? last_error()
                                                                         : std::error_code();
}

std::error_code make_new_folder(std::string& path) {
  return ::mkdtemp(path.data()) == nullptr ? last_error() : std::error_code();
}

std::error_code make_private(const std::string& path) {
  return ::chmod(path.c_str(), 0600) != 0 ? last_error() : std::error_code();
}

std::FILE* open_stream(const std::string& path) noexcept { return std::fopen(path.c_str(), "rb"); }

std::FILE* input_stream() noexcept { return stdin; }

std::optional<std::uint64_t> stream_bytes(std::FILE* stream) noexcept {
  struct stat info{};
  if (::fstat(::fileno(stream), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

std::filesystem::path long_path(const std::string& path) { return path; }

std::vector<std::string> matching_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

bool matches_pattern(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

bool is_program(const std::string& path) {
  std::error_code error;
  return ::access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path, error);
}

bool can_use(const std::string& path) { return ::access(path.c_str(), R_OK | W_OK) == 0; }

bool forbids_programs([[maybe_unused]] const std::string& path) {
#ifdef ST_NOEXEC
  struct statvfs status{};
  return ::statvfs(path.c_str(), &status) == 0 && (status.f_flag & ST_NOEXEC) != 0;
#else
  return false;
#endif
}

std::string cache_folder() {
  const auto xdg = environment_variable("XDG_CACHE_HOME");
  if (xdg && xdg->starts_with('/')) return *xdg;  // relative ones are void
  const auto home = environment_variable("HOME");
  return home && !home->empty() ? *home + "/.cache" : std::string();
}

std::string usual_temporary_folder() { return "/tmp"; }

}  // namespace fulmen::platform
