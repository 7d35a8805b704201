// The process's threads for CPU calls: started when first needed, shared by all callers, asleep
// between calls.
#pragma once

#include <cstdint>

namespace fulmen::cpu {

// Far more threads than a process can start without harm.
constexpr int kMaxThreads = 1024;

// Runs task(arg, 0) on the caller and task(arg, 1), task(arg, 2), ... on at most workers - 1
// threads of the pool, and returns when every task that began has ended. Fewer threads help while
// other calls run, so that all callers and helpers together are no more than `limit`, or than the
// callers. A thread that has not begun when the caller's own task ends is not waited for. Threads
// compute in the caller's floating-point environment.
void run_on_pool(int workers, int limit, void (*task)(void* arg, int64_t worker),
                 void* arg) noexcept;

// Processors that the process's main thread may use.
int usable_processors() noexcept;

}  // namespace fulmen::cpu
