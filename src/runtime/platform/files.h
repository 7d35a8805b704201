// Files and folders as the system has them. Paths are UTF-8 and of any length that the system
// takes. The words of an error are error.message().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace fulmen::platform {

struct FileFacts {
  bool is_regular = false;
  std::uint64_t bytes = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  // of its last change, since 1970
};

enum class Links { followed, kept };

// Nothing where there is no such file, or it cannot be asked; the error tells which.
std::optional<FileFacts> facts_of(const std::string& path, Links links, std::error_code& error);

// An open file, closed at its end.
class File {
 public:
  File() noexcept = default;
  File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNone)) {}
  File& operator=(File&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~File() { static_cast<void>(close()); }

  // To be read. It never blocks: of a pipe or a device only facts() may be asked.
  static File open(const std::string& path, Links links, std::error_code& error);
  // A new file for this user alone, to be written: the last six characters of the path, XXXXXX, are
  // replaced by others that make its name new.
  static File create(std::string& path, std::error_code& error);
  // Made where there is none. Waits until no other File of that path is locked, in any process.
  static File lock(const std::string& path, std::error_code& error);

  explicit operator bool() const noexcept { return handle_ != kNone; }
  FileFacts facts() const;
  bool is_this_users() const;
  bool is_writable_by_others() const;

  // Its first bytes, up to `limit`; fewer where it ends or cannot be read.
  std::size_t read_start(void* to, std::size_t limit) const;
  std::error_code write(std::span<const std::byte> bytes) const;
  // A full network disk reports its error here.
  std::error_code close();
  // Sets the time of its last change to now, as far as the disk keeps one.
  void set_changed_now() const;
  // Lets those read it who may read the folder.
  void let_readers_of(const std::string& folder) const;
  // Gives it the permissions of the file of that path, or, where there is none, of any new file.
  void set_permissions_like(const std::string& path) const;

 private:
  static constexpr std::intptr_t kNone = -1;
  explicit File(std::intptr_t handle) noexcept : handle_(handle) {}

  std::intptr_t handle_ = kNone;
};

// Renames; a file that has the new name is replaced, also while programs read it.
std::error_code replace_file(const std::string& from, const std::string& to);
std::error_code remove_file(const std::string& path) noexcept;
// Where a file that stays does no harm.
inline void try_to_remove_file(const std::string& path) noexcept {
  static_cast<void>(remove_file(path));
}
// For this user alone, or as any new folder is.
enum class Access { own, usual };
std::error_code make_folder(const std::string& path, Access access);
// A new folder for this user alone, named as File::create names files.
std::error_code make_new_folder(std::string& path);
// Lets nobody but this user read and write a file.
std::error_code make_private(const std::string& path);

// A C stream of bytes that are read; null: errno says why.
std::FILE* open_stream(const std::string& path) noexcept;
// Standard input, as bytes.
std::FILE* input_stream() noexcept;
// The size of a stream's file; nothing of a pipe.
std::optional<std::uint64_t> stream_bytes(std::FILE* stream) noexcept;

// The path as std::filesystem and streams take one of any length.
std::filesystem::path long_path(const std::string& path);

// The existing files that a pattern of '*', '?' and '[...]' names, sorted.
std::vector<std::string> matching_files(const std::string& pattern);
bool matches_pattern(const std::string& pattern, const std::string& name);

// Names of what a folder holds; none of one that cannot be read.
std::vector<std::string> names_in(const std::string& folder);

// True of what can be started, which is no folder.
bool is_program(const std::string& path);
// Whether this user may read and write it.
bool can_use(const std::string& path);
// Whether its disk lets nobody run programs, or load libraries, from there.
bool forbids_programs(const std::string& path);
// The user's, in which each program has one of its own; empty where nothing says which.
std::string cache_folder();
// Where temporary files are, unless $TMPDIR says so.
std::string usual_temporary_folder();

}  // namespace fulmen::platform
