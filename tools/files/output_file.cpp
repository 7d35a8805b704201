#include "tools/files/output_file.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "fulmen/printable.h"
#include "fulmen/read_file.h"
#include "tools/signals.h"

namespace fulmen::tools {
namespace {

// Names of temporary files that a signal's handler removes. The table has more places than one
// command has files.
std::array<std::atomic<const std::string*>, 16> unfinished{};

void remove_unfinished() {
  for (const std::atomic<const std::string*>& name : unfinished) {
    if (const std::string* path = name.load(); path != nullptr) platform::try_to_remove_file(*path);
  }
}

void remember(const std::string* path) {
  call_at_signal(remove_unfinished);
  for (std::atomic<const std::string*>& name : unfinished) {
    const std::string* none = nullptr;
    if (name.compare_exchange_strong(none, path)) return;
  }
}

void forget(const std::string* path) {
  for (std::atomic<const std::string*>& name : unfinished) {
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

OutputFile::OutputFile(std::string path, std::unique_ptr<std::string> temporary,
                       platform::File file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}

OutputFile::~OutputFile() {
  static_cast<void>(file_.close());  // what was not committed is thrown away
  if (temporary_ == nullptr) return;
  platform::try_to_remove_file(*temporary_);
  forget(temporary_.get());
}

Result<OutputFile> OutputFile::create(const std::string& asked) {
  const auto cannot = [&](const std::string& why) {
    return Status{StatusCode::unavailable,
                  fmt::format("cannot write '{}': {}", printable(asked), why)};
  };
  if (asked == "-")
    return cannot(
        "results go to files, not to the standard output: give a name (./- for this one)");
  const std::filesystem::path target = followed(asked);
  const std::string path = target.string();
  std::error_code error;
  const auto existing = platform::facts_of(path, platform::Links::followed, error);
  if (error && error != std::errc::no_such_file_or_directory) return cannot(error.message());
  if (path.empty() || (existing && !existing->is_regular))
    return cannot("it is not a regular file's name");
  // Short: the target's may be as long as names get.
  auto temporary = std::make_unique<std::string>((target.parent_path() / "fulmen.XXXXXX").string());
  platform::File file = platform::File::create(*temporary, error);
  if (error) return cannot(error.message());
  remember(temporary.get());
  file.set_permissions_like(path);
  return OutputFile{path, std::move(temporary), std::move(file)};
}

Status OutputFile::failure(const std::error_code& error) const {
  return {StatusCode::unavailable,
          fmt::format("cannot write '{}': {}", printable(path_), error.message())};
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  const std::error_code error = file_.write(bytes);
  return error ? failure(error) : Status{};
}

Status OutputFile::commit() {
  std::error_code error = file_.close();
  if (!error) error = platform::replace_file(*temporary_, path_);
  if (error) return failure(error);
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
  if (!std::filesystem::is_fifo(platform::long_path(path), error)) {
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
