#include "runtime/platform/threads.h"

#include <thread>

#include "runtime/platform/posix/thread_processors.h"

namespace fulmen::platform {

void wait_while(std::atomic<int>& number, int expected) noexcept { number.wait(expected); }
void wake_all(std::atomic<int>& number) noexcept { number.notify_all(); }

// macOS binds no thread to a processor.
void use_processors_of_the_process(pthread_attr_t& /*attributes*/) noexcept {}
int usable_processors() noexcept { return 0; }

}  // namespace fulmen::platform
