// The one way in which the library opens files that it parses; fulmen/read_file.h says what is
// refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "fulmen/read_file.h"

namespace fulmen {

class RegularFile {
 public:
  // Nothing where there is no file of that name.
  static Result<std::optional<RegularFile>> open(const std::string& path, FileTrust trust);
  RegularFile(RegularFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

  int descriptor() const noexcept { return descriptor_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Its first bytes, up to `limit`; fewer where it ends or cannot be read. Text is a std::string or
  // a std::vector<std::byte>.
  template <class Text>
  Text read(std::size_t limit) const {
    Text text;
    text.resize(limit < bytes_ ? limit : bytes_);
    text.resize(read_start(text.data(), text.size()));
    return text;
  }

 private:
  RegularFile(int descriptor, std::size_t bytes) : descriptor_(descriptor), bytes_(bytes) {}
  std::size_t read_start(void* to, std::size_t limit) const;

  int descriptor_;
  std::size_t bytes_;
};

}  // namespace fulmen
