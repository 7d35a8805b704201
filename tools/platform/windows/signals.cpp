#include "tools/signals.h"

#include <windows.h>

#include <atomic>

#include "tools/platform/signals.h"

namespace fulmen::tools {
namespace {

std::atomic<void (*)()> at_signal = nullptr;

// In a thread of the system's. The default action, which ends the process, follows.
BOOL WINAPI end_at(DWORD /*signal*/) {
  prepare_for_the_end();
  if (void (*function)() = at_signal.load(); function != nullptr) function();
  return FALSE;
}

}  // namespace

void watch_signals() { ::SetConsoleCtrlHandler(end_at, TRUE); }
void call_at_signal(void (*function)()) { at_signal = function; }

}  // namespace fulmen::tools
