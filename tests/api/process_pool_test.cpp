// The process's own threads: they share the work of a call, never more at once than asked for, and
// sleep when there is none.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <ctime>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/thread_pool.h"
#include "runtime/threading.h"

// A stand-in for the program's OpenMP: the functions that the library calls.
namespace {
thread_local bool in_region = false;
int openmp_threads = 1;
}  // namespace
extern "C" int omp_in_parallel() { return static_cast<int>(in_region); }
extern "C" int omp_get_max_threads() { return openmp_threads; }

namespace fulmen::cpu {
namespace {

#if !defined(__has_feature)
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
constexpr bool kSanitized = kThreadSanitizer || kAddressSanitizer;

using namespace std::chrono_literals;

void work_for(std::chrono::microseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time;
       std::chrono::steady_clock::now() < end;) {
  }
}

// Whether each of `count` tasks ran once, by workers of their own scratch.
bool each_task_once(int threads, int count, std::chrono::microseconds each) {
  std::vector<int> runs(static_cast<std::size_t>(count));
  std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(threads));
  std::atomic<bool> shared{false};
  parallel_tasks(ThreadSettings{threads, {}}, count, [&](int64_t task, int worker) {
    if (worker < 0 || worker >= threads || busy[static_cast<std::size_t>(worker)].exchange(true))
      shared.store(true);
    ++runs[static_cast<std::size_t>(task)];
    work_for(each);
    busy[static_cast<std::size_t>(worker)].store(false);
  });
  return !shared.load() && std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; });
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What a task of each thread sees, one thread after the other. The caller waits for the others, so
// that all of them begin.
template <class Body>
void on_every_thread(int threads, const Body& body) {
  struct Shared {
    const Body& body;
    int threads;
    std::atomic<int> begun{0};
  } shared{body, threads};
  run_on_pool(
      threads, threads,
      [](void* arg, int64_t worker) {
        auto& all = *static_cast<Shared*>(arg);
        all.begun.fetch_add(1);
        while (all.begun.load() < all.threads) std::this_thread::yield();
        all.body(worker);
      },
      &shared);
}

TEST(ProcessThreads, RunEachTaskOnceForManyCallers) {
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < 300; ++call) {
        if (!each_task_once(1 + (caller + call) % 7, 1 + call % 40,
                            std::chrono::microseconds(call % 3)))
          failures.fetch_add(1);
        if (call % 50 == 0) std::this_thread::sleep_for(1ms);  // so that the threads fall asleep
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST(ProcessThreads, AreAsManyAsAskedFor) {
  std::set<std::thread::id> threads;
  std::mutex mutex;
  on_every_thread(5, [&](int64_t worker) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    EXPECT_LT(worker, 5);
  });
  EXPECT_EQ(threads.size(), 5U);
}

// A call of one thread that ends only when it is released.
class Caller {
 public:
  explicit Caller(int limit)
      : thread_([this, limit] {
          run_on_pool(
              1, limit,
              [](void* arg, int64_t) {
                auto& caller = *static_cast<Caller*>(arg);
                caller.inside_.store(true);
                while (caller.inside_.load()) std::this_thread::yield();
              },
              this);
        }) {
    while (!inside_.load()) std::this_thread::yield();
  }
  ~Caller() {
    inside_.store(false);
    thread_.join();
  }

 private:
  std::atomic<bool> inside_{false};
  std::thread thread_;
};

// How many threads help a call that may have two. Its caller waits for those that are expected, and
// a little longer for more.
int helpers(int limit, int expected) {
  struct Shared {
    int expected;
    std::atomic<int> begun{0};
  } shared{expected};
  run_on_pool(
      3, limit,
      [](void* arg, int64_t worker) {
        auto& all = *static_cast<Shared*>(arg);
        if (worker > 0) {
          all.begun.fetch_add(1);
          return;
        }
        while (all.begun.load() < all.expected) std::this_thread::yield();
        std::this_thread::sleep_for(2ms);
      },
      &shared);
  return shared.begun.load();
}

TEST(ProcessThreads, AreNoMoreThanTheLimitWithAllCallers) {
  EXPECT_EQ(helpers(3, 2), 2);
  {
    const Caller one(3);
    EXPECT_EQ(helpers(3, 1), 1);
    EXPECT_EQ(helpers(4, 2), 2);
    const Caller two(3);
    EXPECT_EQ(helpers(3, 0), 0);
    const Caller three(3);
    EXPECT_EQ(helpers(3, 0), 0);
  }
  EXPECT_EQ(helpers(3, 2), 2);
}

// Processor time between calls as a share of that inside them.
double share_between_calls() {
  double between = 0, inside = 0;
  for (int call = 0; call < 20; ++call) {
    const double before = processor_seconds();
    EXPECT_TRUE(each_task_once(4, 16, 100us));
    const double after = processor_seconds();
    std::this_thread::sleep_for(10ms);
    inside += after - before;
    between += processor_seconds() - after;
  }
  return between / inside;
}

// libgomp's threads took several times as much between calls as inside. Other processes lengthen
// both, so one of five tries counts.
TEST(ProcessThreads, SleepBetweenCalls) {
  double share = share_between_calls();
  for (int more = 0; more < 4 && share >= 1; ++more) share = share_between_calls();
  EXPECT_LT(share, 1);
}

TEST(ProcessThreads, ComputeInTheCallersEnvironmentAndLeaveItsSignals) {
  std::fesetround(FE_UPWARD);
  std::atomic<int> upward{0}, blocked{0};
  const std::thread::id caller = std::this_thread::get_id();
  on_every_thread(3, [&](int64_t) {
    upward.fetch_add(static_cast<int>(std::fegetround() == FE_UPWARD));
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const bool waits = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGSEGV) == 0;
    blocked.fetch_add(static_cast<int>(waits && std::this_thread::get_id() != caller));
  });
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward.load(), 3);
  EXPECT_EQ(blocked.load(), 2);
  on_every_thread(
      3, [&](int64_t) { upward.fetch_sub(static_cast<int>(std::fegetround() == FE_TONEAREST)); });
  EXPECT_EQ(upward.load(), 0);
}

int exit_status_of_child(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that would wait for ever
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(ProcessThreads, AreStartedAgainInAForkedChild) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer lets no forked child start threads";
  ASSERT_TRUE(each_task_once(4, 50, 20us));
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) each_task_once(3, 20, 10us);  // the pool is in use while the process forks
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(exit_status_of_child([] {
                std::atomic<int> threads{0};
                on_every_thread(4, [&](int64_t) { threads.fetch_add(1); });
                return threads.load() == 4 && each_task_once(4, 50, 20us) ? 0 : 1;
              }),
              0);
  }
  stop.store(true);
  other.join();
  EXPECT_TRUE(each_task_once(4, 50, 20us));
}

TEST(ProcessThreads, AreFewerWhereTheSystemRefusesThem) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space";
  EXPECT_EQ(exit_status_of_child([] {
              const rlimit none{0, 0};  // no stack can be mapped
              setrlimit(RLIMIT_AS, &none);
              return each_task_once(4, 50, 20us) ? 0 : 1;
            }),
            0);
}

TEST(ProcessThreads, NumberIsThatOfTheProgramsOpenMP) {
  openmp_threads = 3;
  EXPECT_EQ(thread_settings({}).num_threads, 3);
  in_region = true;
  EXPECT_EQ(thread_settings({}).num_threads, 1);
  std::atomic<int> helped{0};
  parallel_tasks(ThreadSettings{4, {}}, 100,
                 [&](int64_t, int worker) { helped.fetch_add(worker); });
  EXPECT_EQ(helped.load(), 0);
  in_region = false;
  openmp_threads = 1;
  EXPECT_EQ(thread_settings({.num_threads = 5}).num_threads, 5);
}

}  // namespace
}  // namespace fulmen::cpu
