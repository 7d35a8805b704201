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

std::atomic<bool> ending = false;

struct Teller {
  std::mutex mutex;
  std::function<void()> tell;
};
// Never destroyed: the thread that waits for signals outlives main().
Teller& teller() {
  static auto* const kTeller = new Teller;
  return *kTeller;
}

// A thread of its own may wait and take locks, which a signal's handler may not.
void end_at(sigset_t signals) {
  int signal = 0;
  if (::sigwait(&signals, &signal) != 0) return;
  ending = true;
  {
    const std::scoped_lock lock(teller().mutex);
    if (teller().tell) teller().tell();
  }
  end_compilers();
  // The default action, or that of output_file.cpp first.
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace

void watch_signals() {
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

TellAtSignal::TellAtSignal(std::function<void()> tell) {
  const std::scoped_lock lock(teller().mutex);
  teller().tell = std::move(tell);
}

TellAtSignal::~TellAtSignal() {
  const std::scoped_lock lock(teller().mutex);
  teller().tell = nullptr;
}

void wait_if_a_signal_ends_the_process() {
  while (ending) ::pause();
}

}  // namespace fulmen::tools
