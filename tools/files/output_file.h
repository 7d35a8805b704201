// Files that appear complete or not at all, and whole files read.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fulmen/status.h"
#include "runtime/platform/files.h"

namespace fulmen::tools {

// A file that is written beside its final name and renamed by commit(). Destroyed before that it
// leaves nothing behind, and so does a program that SIGINT, SIGTERM or SIGHUP ends.
class OutputFile {
 public:
  // Opens the temporary file, beside what a symbolic link leads to. Errors: the folder does not
  // exist or cannot be written, or path is a folder.
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  // Gives the file its final name, replacing an older one.
  Status commit();

 private:
  OutputFile(std::string path, std::unique_ptr<std::string> temporary, platform::File file);
  Status failure(const std::error_code& error) const;

  std::string path_;
  // Its name, null once renamed; stays where it is, for the signals' handler.
  std::unique_ptr<std::string> temporary_;
  platform::File file_;
};

// Returns true if two names belong to one file, or will once it exists.
bool same_file(const std::string& a, const std::string& b);

// Checks that a report can be written there, before minutes of work. Ok for no path. Leaves no
// file.
Status check_writable(const std::string& path);

// Flushes what was printed: it may wait in a buffer for a disk that is full.
Status flush_standard_output();

// Reads all of a file that a user named: a regular one, or a pipe, of up to 256 MiB. Errors name
// the option and the path.
Result<std::string> read_text_file(const char* option, const std::string& path);

// Creates, writes and commits text in one go.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace fulmen::tools
