#include "tools/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "fulmen/compile.h"

namespace fulmen::tools {
namespace {

std::atomic<bool> process_ends = false;
std::atomic<void (*)()> at_signal = nullptr;

void call_and_end(int signal) {
  if (void (*function)() = at_signal.load(); function != nullptr) function();
  ::raise(signal);  // SA_RESETHAND: the default action now
}

struct SignalTeller {
  std::mutex mutex;
  std::function<void()> tell;
};
// Never destroyed: the thread that waits for signals outlives main().
SignalTeller& signal_teller() {
  static auto* const kTeller = new SignalTeller;
  return *kTeller;
}

// A thread of its own may wait and take locks, which a signal's handler may not.
void end_at(sigset_t signals) {
  int signal = 0;
  if (::sigwait(&signals, &signal) != 0) return;
  process_ends = true;
  {
    const std::scoped_lock lock(signal_teller().mutex);
    if (signal_teller().tell) signal_teller().tell();
  }
  end_compilers();
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

TellAtSignal::TellAtSignal(std::function<void()> tell) {
  const std::scoped_lock lock(signal_teller().mutex);
  signal_teller().tell = std::move(tell);
}

TellAtSignal::~TellAtSignal() {
  const std::scoped_lock lock(signal_teller().mutex);
  signal_teller().tell = nullptr;
}

void wait_if_a_signal_ends_the_process() {
  while (process_ends) ::pause();
}

}  // namespace fulmen::tools
