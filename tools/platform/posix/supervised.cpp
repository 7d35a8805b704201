#include "tools/tune/supervised.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "runtime/platform/posix/pipe.h"
#include "runtime/platform/processes.h"
#include "tools/signals.h"

namespace fulmen::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kUsualLimit = 60;  // seconds, for what happens before the first step

[[noreturn]] void worker(int descriptor, const std::function<void(const Teller&)>& work) {
  platform::end_with_parent();
  watch_signals();  // the parent's thread for signals does not exist here
  try {
    work(Teller(descriptor));
    ::_exit(0);
  } catch (const std::exception& error) {
    Teller(descriptor).tell(fmt::format("error {}", error.what()));
    ::_exit(1);
  }
}

std::string ending(int status) {
  if (WIFEXITED(status)) return fmt::format("it ended with status {}", WEXITSTATUS(status));
  return fmt::format("it ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
}

// Reads lines until the end or a step's limit. False: the limit.
class Listener {
 public:
  Listener(int descriptor, WorkerEnd& end,
           const std::function<void(const std::string&)>& on_message)
      : descriptor_(descriptor), end_(end), on_message_(on_message) {
    limit(kUsualLimit);
  }
  bool listen() {
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) return false;
      pollfd ready{descriptor_, POLLIN, 0};
      const int count = ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
      if (count <= 0) continue;
      char bytes[4096];
      const ssize_t got = ::read(descriptor_, bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return true;
      pending_.append(bytes, static_cast<std::size_t>(got));
      for (std::size_t at; (at = pending_.find('\n')) != std::string::npos;
           pending_.erase(0, at + 1))
        take(pending_.substr(0, at));
    }
  }
  double seconds() const { return seconds_; }

 private:
  void limit(double seconds) {
    seconds_ = seconds;
    deadline_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  void take(const std::string& line) {
    if (line.empty()) return;
    if (line[0] != 'b') return on_message_(line.substr(1));
    const std::size_t space = line.find(' ');
    limit(std::stod(line.substr(1, space - 1)));
    end_.step = line.substr(space + 1);
  }

  int descriptor_;
  WorkerEnd& end_;
  const std::function<void(const std::string&)>& on_message_;
  std::string pending_;
  double seconds_ = 0;
  Clock::time_point deadline_;
};

}  // namespace

void Teller::write_line(char kind, const std::string& text) const {
  std::string line = kind + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + at, line.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the parent does not listen any more
    at += static_cast<std::size_t>(count);
  }
}
void Teller::begin(const std::string& step, double limit_seconds) const {
  write_line('b', fmt::format("{} {}", limit_seconds, step));
}
void Teller::tell(const std::string& message) const { write_line('m', message); }

WorkerEnd run_supervised(const std::function<void(const Teller&)>& work,
                         const std::function<void(const std::string&)>& on_message) {
  WorkerEnd end;
  int ends[2];
  if (!platform::open_pipe(ends)) {
    end.why = std::error_code(errno, std::generic_category()).message();
    return end;
  }
  std::fflush(nullptr);  // else the worker would print it once more
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    worker(ends[1], work);
  }
  ::close(ends[1]);
  if (child < 0) {
    end.why = std::error_code(errno, std::generic_category()).message();
    ::close(ends[0]);
    return end;
  }
  Listener listener(ends[0], end, on_message);
  const bool ended = listener.listen();
  if (!ended) ::kill(child, SIGKILL);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    end.why = fmt::format("it ran for more than {:g} s", listener.seconds());
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    end.done = true;
  } else {
    end.why = ending(status);
  }
  return end;
}

}  // namespace fulmen::tools
