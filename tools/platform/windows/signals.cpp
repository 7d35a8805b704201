#include "tools/signals.h"

#include <windows.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "fulmen/compile.h"

namespace fulmen::tools {
namespace {

std::atomic<bool> process_ends = false;
std::atomic<void (*)()> at_signal = nullptr;

struct SignalTeller {
  std::mutex mutex;
  std::function<void()> tell;
};
// Never destroyed: the thread that handles ^C outlives main().
SignalTeller& signal_teller() {
  static auto* const kTeller = new SignalTeller;
  return *kTeller;
}

// In a thread of the system's. The default action, which ends the process, follows.
BOOL WINAPI end_at(DWORD /*signal*/) {
  process_ends = true;
  {
    const std::scoped_lock lock(signal_teller().mutex);
    if (signal_teller().tell) signal_teller().tell();
  }
  end_compilers();
  if (void (*function)() = at_signal.load(); function != nullptr) function();
  return FALSE;
}

}  // namespace

void watch_signals() { ::SetConsoleCtrlHandler(end_at, TRUE); }
void call_at_signal(void (*function)()) { at_signal = function; }

TellAtSignal::TellAtSignal(std::function<void()> tell) {
  const std::scoped_lock lock(signal_teller().mutex);
  signal_teller().tell = std::move(tell);
}

TellAtSignal::~TellAtSignal() {
  const std::scoped_lock lock(signal_teller().mutex);
  signal_teller().tell = nullptr;
}

void wait_if_a_signal_ends_the_process() {
  while (process_ends) ::Sleep(INFINITE);
}

}  // namespace fulmen::tools
