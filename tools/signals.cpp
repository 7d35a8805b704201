#include "tools/signals.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "fulmen/compile.h"
#include "tools/platform/signals.h"

namespace fulmen::tools {
namespace {

std::atomic<bool> process_ends = false;

struct SignalTeller {
  std::mutex mutex;
  std::function<void()> tell;
};
// Never destroyed: the thread that handles signals outlives main().
SignalTeller& signal_teller() {
  static auto* const kTeller = new SignalTeller;
  return *kTeller;
}

}  // namespace

void prepare_for_the_end() {
  process_ends = true;
  {
    const std::scoped_lock lock(signal_teller().mutex);
    if (signal_teller().tell) signal_teller().tell();
  }
  end_compilers();
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
  while (process_ends) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace fulmen::tools
