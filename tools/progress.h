// One line of progress that overwrites itself on a terminal and does not exist in a pipe.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace fulmen::tools {

class Progress {
 public:
  // A long run: rows appear as they come, in a pipe as well.
  Progress() : terminal_(::isatty(STDOUT_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(const std::string& what) {
    if (!terminal_) return;
    fmt::print("\r\x1b[K{}", what);
    std::fflush(stdout);
    shown_ = true;
  }
  void line(const std::string& text) {
    clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

 private:
  void clear() {
    if (shown_) fmt::print("\r\x1b[K");
    shown_ = false;
  }
  bool terminal_;
  bool shown_ = false;
};

}  // namespace fulmen::tools
