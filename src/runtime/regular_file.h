// The one way in which the library opens files that it parses; fulmen/read_file.h says what is
// refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "fulmen/read_file.h"
#include "runtime/platform/files.h"

namespace fulmen {

class RegularFile {
 public:
  // Nothing where there is no file of that name.
  static Result<std::optional<RegularFile>> open(const std::string& path, FileTrust trust);

  std::size_t bytes() const noexcept { return bytes_; }
  void set_changed_now() const { file_.set_changed_now(); }
  // Its first bytes, up to `limit`; fewer where it ends or cannot be read. Text is a std::string or
  // a std::vector<std::byte>.
  template <class Text>
  Text read(std::size_t limit) const {
    Text text;
    text.resize(limit < bytes_ ? limit : bytes_);
    text.resize(file_.read_start(text.data(), text.size()));
    return text;
  }

 private:
  RegularFile(platform::File file, std::size_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  platform::File file_;
  std::size_t bytes_;
};

}  // namespace fulmen
