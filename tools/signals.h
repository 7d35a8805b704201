// SIGINT, SIGTERM and SIGHUP: compilers and temporary folders end with the program, whose parent sees the signal.
#pragma once

namespace fulmen::tools {

// To be called before other threads start: they inherit that the signals are blocked. One that is ignored (nohup) stays so.
void watch_signals();

// Never returns where a signal is about to end the process: nothing is told of calls that fail for that.
void wait_if_a_signal_ends_the_process();

}  // namespace fulmen::tools
