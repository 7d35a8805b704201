// Files that appear complete or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

// A file that is written beside its final name and renamed by commit(). Destroyed before that it leaves nothing behind.
class OutputFile {
 public:
  // Opens the temporary file. Errors: the folder does not exist or cannot be written, or path is a folder.
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  // Gives the file its final name, replacing an older one.
  Status commit();

 private:
  OutputFile(std::string path, std::string temporary, int descriptor);
  std::string path_;
  std::string temporary_;  // empty once renamed
  int descriptor_ = -1;
};

// Creates, writes and commits text in one go.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace fulmen::tools
