// Threads of a CPU call: the process's pool or the caller's own, never more running at once than
// the process was given.
#pragma once

#include <atomic>
#include <cstdint>

#include "fulmen/attention.h"
#include "fulmen/status.h"

namespace fulmen::cpu {

struct ThreadSettings {
  int num_threads = 1;  // most workers; scratch is sized by it
  ParallelFor parallel_for;
};

// Error for a number that is no number of threads.
Status check_num_threads(int num_threads);

// options.num_threads; else the setting of a host's OpenMP (1 inside a parallel region),
// OMP_NUM_THREADS, or the processors that the process may use. kMaxThreads at most.
ThreadSettings thread_settings(const AttentionOptions& options) noexcept;

// No more workers than tasks, where each takes memory.
inline ThreadSettings at_most(int64_t tasks, ThreadSettings settings) noexcept {
  if (tasks < settings.num_threads) settings.num_threads = static_cast<int>(tasks);
  return settings;
}

// Runs task(arg, worker) for workers 0 .. n-1, n <= min(num_threads, max_useful), and returns when
// all are done. n shrinks when other calls are using the process's threads, so nothing may depend
// on it: workers take their work from TaskRanges. Throws std::runtime_error where a caller's
// parallel_for throws anything, with its words, or does not run every worker once.
void run_workers(const ThreadSettings& settings, int64_t max_useful,
                 void (*task)(void* arg, int64_t worker), void* arg);

// Hands out the tasks 0 .. count-1, each once. A worker begins with a range of its own, the same in
// every call, so that what a call leaves in its caches is there in the next one; then it helps with
// the other ranges.
class TaskRanges {
 public:
  static constexpr int kMaxRanges = 64;  // workers beyond share others' ranges
  TaskRanges(int64_t count, int workers) noexcept
      : count_(count), ranges_(workers < kMaxRanges ? workers : kMaxRanges) {
    for (int r = 0; r < ranges_; ++r) next_[r].task.store(begin(r), std::memory_order_relaxed);
  }
  template <class Body>
  void run(int worker, const Body& body) noexcept {
    for (int i = 0; i < ranges_; ++i) {
      const int range = (worker + i) % ranges_;
      const int64_t end = begin(range + 1);
      for (;;) {
        const int64_t task = next_[range].task.fetch_add(1, std::memory_order_relaxed);
        if (task >= end) break;
        body(task, worker);
      }
    }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> task{0};
  };
  int64_t begin(int range) const noexcept {
    return count_ / ranges_ * range + count_ % ranges_ * range / ranges_;
  }

  int64_t count_;
  int ranges_;
  Counter next_[kMaxRanges];
};

// Runs body(task, worker) for every task in [0, count); body must not throw, run_workers may.
// ranges: 1 where the tasks are to begin in order.
template <class Body>
void parallel_tasks(const ThreadSettings& settings, int64_t count, const Body& body, int ranges) {
  struct Shared {
    TaskRanges tasks;
    const Body& body;
  } shared{TaskRanges(count, ranges), body};
  run_workers(
      settings, count,
      [](void* arg, int64_t worker) {
        auto& work = *static_cast<Shared*>(arg);
        work.tasks.run(static_cast<int>(worker), work.body);
      },
      &shared);
}
template <class Body>
void parallel_tasks(const ThreadSettings& settings, int64_t count, const Body& body) {
  parallel_tasks(settings, count, body, settings.num_threads);
}

}  // namespace fulmen::cpu
