#include "runtime/platform/threads.h"

#include <pthread.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <ctime>

#include "runtime/platform/posix/thread_processors.h"

namespace fulmen::platform {

static_assert(sizeof(Thread) == sizeof(pthread_t));

void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  ::pthread_atfork(before, in_parent, in_child);
}

bool start_thread(Thread& thread, void* (*run)(void*), void* argument) noexcept {
  sigset_t all, before;
  sigfillset(&all);  // macros on macOS
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
    sigdelset(&all, signal);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  use_processors_of_the_process(attributes);
  pthread_t started{};
  const bool ok = ::pthread_create(&started, &attributes, run, argument) == 0;
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ok) thread = std::bit_cast<Thread>(started);
  return ok;
}

void join_thread(Thread thread) noexcept {
  ::pthread_join(std::bit_cast<pthread_t>(thread), nullptr);
}

bool threads_outlive_statics() noexcept { return true; }

void sleep_for(std::chrono::microseconds time) noexcept {
  ::usleep(static_cast<useconds_t>(time.count()));
}

std::chrono::nanoseconds thread_time() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace fulmen::platform
