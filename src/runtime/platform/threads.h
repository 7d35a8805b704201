// Threads, and what happens to them when a process forks or ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fulmen::platform {

// Sleeps until the number is not `expected` any more; returns at times before.
void wait_while(std::atomic<int>& number, int expected) noexcept;
void wake_all(std::atomic<int>& number) noexcept;

// What is called before and after each fork(); null: nothing. Never on systems without fork().
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;

using Thread = std::uintptr_t;
// A thread that runs on any processor of the process and handles none of the host's signals but
// those of errors and profilers. False: the system gives none.
bool start_thread(Thread& thread, void* (*run)(void*), void* argument) noexcept;
void join_thread(Thread thread) noexcept;
// Returns true if threads run while static objects are destroyed: they have to be ended then. Else
// the system has ended them before.
bool threads_outlive_statics() noexcept;

void sleep_for(std::chrono::microseconds time) noexcept;
// Processor time of the calling thread: on a machine with more to do than processors, less than
// what the clock says. The clock, where the system counts it too coarsely.
std::chrono::nanoseconds thread_time() noexcept;
// Those that this process may use; 0: unknown.
int usable_processors() noexcept;

}  // namespace fulmen::platform
