// SIGINT, SIGTERM and SIGHUP, on Windows ^C, ^Break and a closed console: compilers and temporary
// folders end with the program, whose parent sees the signal.
#pragma once

#include <functional>

namespace fulmen::tools {

// To be called before other threads start, which inherit that the signals are blocked. A signal
// that is ignored (nohup) stays so. A file larger than the limit (ulimit -f) is an error of its
// write from now on, told like a full disk.
void watch_signals();

// Before a signal ends the process, function() is called, in whatever thread: it may only do what a
// signal's handler may.
void call_at_signal(void (*function)());

// Tells what is known so far before a signal ends the process: while this lives, tell() is called
// then, once, in another thread. It may wait for a lock that this object's owner holds briefly, and
// need not release it.
class TellAtSignal {
 public:
  explicit TellAtSignal(std::function<void()> tell);
  ~TellAtSignal();
  TellAtSignal(const TellAtSignal&) = delete;
  TellAtSignal& operator=(const TellAtSignal&) = delete;
};

// Never returns where a signal is about to end the process: nothing is told of calls that fail for
// that.
void wait_if_a_signal_ends_the_process();

}  // namespace fulmen::tools
