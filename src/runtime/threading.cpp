#include "runtime/threading.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>

#include <vector>
#endif

namespace fulmen::cpu {
namespace {

// Far more threads than a process can start without harm: OpenMP's runtime ends the process when it cannot start one.
constexpr int kMaxThreads = 1024;

// A caller's pool, watched. An index that it runs twice at once, or makes up, would use another worker's scratch, and one that it
// forgets may have work: neither is run, both are said.
class WatchedPool {
 public:
  WatchedPool(int workers, void (*task)(void* arg, int64_t worker), void* arg) noexcept
      : workers_(workers), task_(task), arg_(arg) {}

  void run(const ParallelFor& pool) {
    try {
      pool.run(pool.context, workers_, &WatchedPool::begin, this);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("parallel_for threw: {}", error.what()));
    } catch (...) {
      throw std::runtime_error("parallel_for threw something that is no std::exception");
    }
    if (wrong_.load()) {
      throw std::runtime_error(
          fmt::format("parallel_for ran index {}: it must run every index from 0 to {} once", index_.load(), workers_ - 1));
    }
    if (ended_.load() != workers_) {
      throw std::runtime_error(
          fmt::format("parallel_for returned after {} of {} indices: it must run every one once before", ended_.load(), workers_));
    }
  }

 private:
  static void begin(void* arg, int64_t index) {
    auto& pool = *static_cast<WatchedPool*>(arg);
    if (index < 0 || index >= pool.workers_ || pool.begun_[static_cast<std::size_t>(index)].exchange(true)) {
      pool.index_.store(index);
      pool.wrong_.store(true);
      return;
    }
    pool.task_(pool.arg_, index);
    pool.ended_.fetch_add(1);
  }

  int workers_;
  void (*task_)(void* arg, int64_t worker);
  void* arg_;
  std::array<std::atomic<bool>, kMaxThreads> begun_{};
  std::atomic<int> ended_{0};
  std::atomic<bool> wrong_{false};
  std::atomic<int64_t> index_{0};  // the wrong one
};

}  // namespace

#ifdef _OPENMP
namespace {

// Threads now inside run_workers, beyond each caller's own. Two callers share the machine instead of each starting a full team.
std::atomic<int>& extra_threads_in_use() noexcept {
  static std::atomic<int> in_use{0};
  return in_use;
}

// Takes up to wanted extra threads from a budget of limit; the caller gives back what it got.
int take_extra_threads(int wanted, int limit) noexcept {
  auto& in_use = extra_threads_in_use();
  int used = in_use.load(std::memory_order_relaxed);
  while (true) {
    const int taken = std::clamp(limit - used, 0, wanted);
    if (taken == 0 || in_use.compare_exchange_weak(used, used + taken, std::memory_order_relaxed)) return taken;
  }
}

// A forked child has none of its parent's threads, but OpenMP's runtime may count on them and wait for ever. Threads of the child's
// own do the work there.
bool forked = false;
[[maybe_unused]] const int kForkWatch = pthread_atfork(nullptr, nullptr, [] {
  forked = true;
  extra_threads_in_use().store(0, std::memory_order_relaxed);
});

void run_on_new_threads(int extra, void (*task)(void* arg, int64_t worker), void* arg) noexcept {
  std::vector<std::thread> threads;
  bool more = true;
  for (int worker = 1; worker <= extra && more; ++worker) {
    try {
      threads.emplace_back(task, arg, worker);
    } catch (...) {
      more = false;  // fewer threads do the same work
    }
  }
  task(arg, 0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
#endif

Status check_num_threads(int num_threads) {
  if (num_threads >= 0) return {};
  return {StatusCode::invalid_argument,
          fmt::format("num_threads is {}: 0 (the caller's setting) or above is accepted", num_threads)};
}

ThreadSettings thread_settings(const AttentionOptions& options) noexcept {
  ThreadSettings settings{1, options.parallel_for};
  if (options.num_threads > 0) {
    settings.num_threads = options.num_threads;
  } else if (options.parallel_for.run != nullptr) {
    settings.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  } else {
#ifdef _OPENMP
    settings.num_threads = omp_in_parallel() != 0 ? 1 : std::max(1, omp_get_max_threads());
#endif
  }
  settings.num_threads = std::min(settings.num_threads, kMaxThreads);
  return settings;
}

void run_workers(const ThreadSettings& settings, int64_t max_useful, void (*task)(void* arg, int64_t worker), void* arg) {
  const int workers = static_cast<int>(std::min<int64_t>(settings.num_threads, max_useful));
  if (workers <= 0) return;
  if (settings.parallel_for.run != nullptr) {
    WatchedPool(workers, task, arg).run(settings.parallel_for);
    return;
  }
#ifdef _OPENMP
  if (workers > 1 && omp_in_parallel() == 0) {
    const int extra = take_extra_threads(workers - 1, settings.num_threads - 1);
    if (extra > 0) {
      if (forked) {
        run_on_new_threads(extra, task, arg);
        extra_threads_in_use().fetch_sub(extra, std::memory_order_relaxed);
        return;
      }
#pragma omp parallel num_threads(extra + 1)
      task(arg, omp_get_thread_num());
      extra_threads_in_use().fetch_sub(extra, std::memory_order_relaxed);
      return;
    }
  }
#endif
  task(arg, 0);
}

}  // namespace fulmen::cpu
