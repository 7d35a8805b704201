#include "runtime/threading.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/thread_pool.h"

// A host's OpenMP, where it has one.
extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] int omp_in_parallel();
}

namespace fulmen::cpu {
namespace {

// A caller's pool, watched. An index that it runs twice at once, or makes up, would use another
// worker's scratch, and one that it forgets may have work: neither is run, both are said.
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
          fmt::format("parallel_for ran index {}: it must run every index from 0 to {} once",
                      index_.load(), workers_ - 1));
    }
    if (ended_.load() != workers_) {
      throw std::runtime_error(fmt::format(
          "parallel_for returned after {} of {} indices: it must run every one once before",
          ended_.load(), workers_));
    }
  }

 private:
  static void begin(void* arg, int64_t index) {
    auto& pool = *static_cast<WatchedPool*>(arg);
    if (index < 0 || index >= pool.workers_ ||
        pool.begun_[static_cast<std::size_t>(index)].exchange(true)) {
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

// The first number of a list; 0 where there is none.
int environment_number(const char* name) {
  const std::string value = environment(name);
  const std::size_t begin = std::min(value.find_first_not_of(" \t"), value.size());
  int number = 0;
  const auto [end, error] =
      std::from_chars(value.data() + begin, value.data() + value.size(), number);
  return error == std::errc{} && (*end == '\0' || *end == ',' || *end == ' ') ? std::max(number, 0)
                                                                              : 0;
}

int default_threads() {
  constinit static MadeOnce<const int> count;
  return count.get([] {
    const int asked = environment_number("OMP_NUM_THREADS"),
              limit = environment_number("OMP_THREAD_LIMIT");
    const int number = asked > 0 ? asked : usable_processors();
    return limit > 0 ? std::min(number, limit) : number;
  });
}

bool in_parallel_region() { return omp_in_parallel != nullptr && omp_in_parallel() != 0; }

}  // namespace

Status check_num_threads(int num_threads) {
  if (num_threads >= 0) return {};
  return {
      StatusCode::invalid_argument,
      fmt::format("num_threads is {}: 0 (the caller's setting) or above is accepted", num_threads)};
}

ThreadSettings thread_settings(const AttentionOptions& options) noexcept {
  ThreadSettings settings{1, options.parallel_for};
  if (options.num_threads > 0) {
    settings.num_threads = options.num_threads;
  } else if (options.parallel_for.run != nullptr) {
    settings.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  } else if (in_parallel_region()) {
    settings.num_threads = 1;
  } else {
    settings.num_threads =
        omp_get_max_threads != nullptr ? std::max(1, omp_get_max_threads()) : default_threads();
  }
  settings.num_threads = std::min(settings.num_threads, kMaxThreads);
  return settings;
}

void run_workers(const ThreadSettings& settings, int64_t max_useful,
                 void (*task)(void* arg, int64_t worker), void* arg) {
  const int workers = static_cast<int>(std::min<int64_t>(settings.num_threads, max_useful));
  if (workers <= 0) return;
  if (settings.parallel_for.run != nullptr) {
    WatchedPool(workers, task, arg).run(settings.parallel_for);
    return;
  }
  if (workers == 1 || in_parallel_region()) {
    task(arg, 0);
  } else {
    run_on_pool(workers, settings.num_threads, task, arg);
  }
}

}  // namespace fulmen::cpu
