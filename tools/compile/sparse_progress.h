// Progress of long work without a terminal: a line now and then, so that a log tells a long run
// from one that hangs.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace fulmen::tools {

class SparseProgress {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kApart = std::chrono::seconds(10);

  // say: takes "40 of 310 kernels, 12 s". now: a test's clock.
  explicit SparseProgress(std::function<void(const std::string&)> say,
                          std::function<Clock::time_point()> now = Clock::now)
      : say_(std::move(say)), now_(std::move(now)), begin_(now_()), said_(begin_) {}

  // Prints a line, unless the last one is younger than kApart, or all is done and the result
  // follows.
  void tell(std::size_t done, std::size_t of) {
    const Clock::time_point at = now_();
    if (done == of || at - said_ < kApart) return;
    said_ = at;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at - begin_).count();
    say_(fmt::format("{} of {} kernels, {} s", done, of, seconds));
  }

 private:
  std::function<void(const std::string&)> say_;
  std::function<Clock::time_point()> now_;
  Clock::time_point begin_, said_;
};

}  // namespace fulmen::tools
