#include "runtime/platform/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "runtime/platform/posix/thread_processors.h"

namespace fulmen::platform {

void wait_while(std::atomic<int>& number, int expected) noexcept {
  ::syscall(SYS_futex, &number, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void wake_all(std::atomic<int>& number) noexcept {
  ::syscall(SYS_futex, &number, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void use_processors_of_the_process(pthread_attr_t& attributes) noexcept {
  cpu_set_t processors;
  if (::sched_getaffinity(::getpid(), sizeof processors, &processors) == 0)
    ::pthread_attr_setaffinity_np(&attributes, sizeof processors, &processors);
}

int usable_processors() noexcept {
  cpu_set_t processors;
  // A machine of more processors than a cpu_set_t has is an error here.
  return ::sched_getaffinity(::getpid(), sizeof processors, &processors) == 0
             ? CPU_COUNT(&processors)
             : 0;
}

}  // namespace fulmen::platform
