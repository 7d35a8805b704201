#include "tools/signals.h"

#include <atomic>
#include <csignal>
#include <thread>

#include "tools/platform/signals.h"

namespace fulmen::tools {
namespace {

std::atomic<void (*)()> at_signal = nullptr;

void call_and_end(int signal) {
  if (void (*function)() = at_signal.load(); function != nullptr) function();
  ::raise(signal);  // SA_RESETHAND: the default action now
}

// A thread of its own may wait and take locks, which a signal's handler may not.
void end_at(sigset_t signals) {
  int signal = 0;
  if (::sigwait(&signals, &signal) != 0) return;
  prepare_for_the_end();
  // The default action, or that of call_at_signal() first.
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace

void watch_signals() {
  std::signal(SIGXFSZ, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      sigaddset(&signals, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(end_at, signals).detach();
}

// A signal that is ignored (nohup), or handled by somebody else, stays so.
void call_at_signal(void (*function)()) {
  at_signal = function;
  struct sigaction ours{};
  ours.sa_handler = call_and_end;
  ours.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      ::sigaction(signal, &ours, nullptr);
  }
}

}  // namespace fulmen::tools
