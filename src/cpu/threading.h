// Threads of a CPU call: OpenMP or the caller's own pool, never more running at once than the process was given.
#pragma once

#include <atomic>
#include <cstdint>

#include "fulmen/attention.h"

namespace fulmen::cpu {

struct ThreadSettings {
  int num_threads = 1;  // most workers; scratch is sized by it
  ParallelFor parallel_for;
};

// options.num_threads, or the OpenMP setting of the calling thread (1 inside a parallel region).
ThreadSettings thread_settings(const AttentionOptions& options) noexcept;

// Runs task(arg, worker) for workers 0 .. n-1, n <= min(num_threads, max_useful), and returns when all are done. n shrinks when
// other calls are using the process's threads, so nothing may depend on it: workers take their work from a TaskCounter.
void run_workers(const ThreadSettings& settings, int64_t max_useful, void (*task)(void* arg, int64_t worker), void* arg) noexcept;

// Hands out the tasks 0 .. count-1, each once.
class TaskCounter {
 public:
  explicit TaskCounter(int64_t count) noexcept : count_(count) {}
  // The next task, or -1 when none is left.
  int64_t next() noexcept {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    return task < count_ ? task : -1;
  }

 private:
  alignas(64) std::atomic<int64_t> next_{0};
  int64_t count_;
};

// Runs body(task, worker) for every task in [0, count); body must not throw.
template <class Body>
void parallel_tasks(const ThreadSettings& settings, int64_t count, const Body& body) noexcept {
  struct Shared {
    TaskCounter tasks;
    const Body& body;
  } shared{TaskCounter(count), body};
  run_workers(
      settings, count,
      [](void* arg, int64_t worker) {
        auto& work = *static_cast<Shared*>(arg);
        for (int64_t task = work.tasks.next(); task >= 0; task = work.tasks.next()) work.body(task, static_cast<int>(worker));
      },
      &shared);
}

}  // namespace fulmen::cpu
