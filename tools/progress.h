// One line of progress that overwrites itself on a terminal and does not exist in a pipe.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "runtime/platform/system.h"

namespace fulmen::tools {

class Progress {
 public:
  // A long run: rows appear as they come, in a pipe as well.
  Progress() : terminal_(platform::is_terminal(1)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(const std::string& what) {
    if (!terminal_) return;
    fmt::print("\r\x1b[K{}", what);
    std::fflush(stdout);
    shown_ = true;
  }
  // For what changes more often than anybody reads: five times a second on a terminal; in a pipe a
  // line on stderr twice a minute, which tells a long run from one that hangs.
  void count(const std::string& what) {
    using std::chrono::steady_clock;
    const auto now = steady_clock::now();
    if (now - counted_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(30)))
      return;
    counted_ = now;
    if (terminal_) return show(what);
    fmt::print(stderr, "{}\n", what);
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
  std::chrono::steady_clock::time_point counted_ = std::chrono::steady_clock::now();
  bool shown_ = false;
};

}  // namespace fulmen::tools
