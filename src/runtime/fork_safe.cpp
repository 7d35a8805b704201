#include "runtime/fork_safe.h"

#include "runtime/platform/threads.h"

namespace fulmen {
namespace {

using platform::wait_while;
using platform::wake_all;

constinit std::atomic<int> sections{0};    // of all threads, the outermost of each
constinit std::atomic<int> forks{0};       // that are under way: no section begins
constinit std::atomic<int> generation{1};  // of the process: its parent's and 1
constinit thread_local int depth = 0;      // of this thread's sections
constinit std::atomic<int> loads{0};       // of libraries, by all threads
constinit thread_local int own_loads = 0;

void leave() noexcept {
  sections.fetch_sub(1);
  if (forks.load() != 0) wake_all(sections);
}

// A thread may fork within a section of its own, which then continues in parent and child.
int own() noexcept { return depth > 0 ? 1 : 0; }

void before_fork() noexcept {
  forks.fetch_add(1);
  constexpr int kMostMilliseconds = 2000;
  for (int ms = 0; loads.load() > own_loads && ms < kMostMilliseconds; ++ms)
    platform::sleep_for(std::chrono::milliseconds(1));
  for (int now = sections.load(); now > own(); now = sections.load()) wait_while(sections, now);
}

void after_fork_in_parent() noexcept {
  if (forks.fetch_sub(1) == 1) wake_all(forks);
}

void after_fork_in_child() noexcept {
  sections.store(own());
  loads.store(own_loads);
  forks.store(0);
  generation.fetch_add(1);
}

struct ForkWatch {
  ForkWatch() noexcept {
    platform::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
} const kForkWatch;

void begin_section() noexcept {
  if (depth++ > 0) return;
  for (;;) {
    sections.fetch_add(1);
    if (forks.load() == 0) return;
    leave();
    for (int now = forks.load(); now != 0; now = forks.load()) wait_while(forks, now);
  }
}

void end_section() noexcept {
  if (--depth == 0) leave();
}

// What a library does when it is loaded may load another.
void begin_load() noexcept {
  for (;;) {
    loads.fetch_add(1);
    if (own_loads > 0 || forks.load() == 0) break;
    loads.fetch_sub(1);
    for (int now = forks.load(); now != 0; now = forks.load()) wait_while(forks, now);
  }
  ++own_loads;
}

void end_load() noexcept {
  --own_loads;
  loads.fetch_sub(1);
}

struct Load {
  Load() noexcept { begin_load(); }
  ~Load() { end_load(); }  // a visit may throw
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
};

}  // namespace

void Mutex::lock() {
  begin_section();
  mutex_.lock();
}
void Mutex::unlock() {
  mutex_.unlock();
  end_section();
}

void SharedMutex::lock() {
  begin_section();
  mutex_.lock();
}
void SharedMutex::unlock() {
  mutex_.unlock();
  end_section();
}
void SharedMutex::lock_shared() {
  begin_section();
  mutex_.lock_shared();
}
void SharedMutex::unlock_shared() {
  mutex_.unlock_shared();
  end_section();
}

void* open_library(const std::string& name, platform::Opening opening,
                   platform::OpeningError& error) {
  const Load load;
  return platform::load_library(name, opening, error);
}

void close_library(void* library) noexcept {
  const Load load;
  platform::unload_library(library);
}

void visit_libraries(const std::function<bool(const platform::LoadedLibrary&)>& visit) {
  const Load load;
  platform::visit_loaded(visit);
}

void WorkLock::lock() noexcept {
  const int mine = generation.load();
  int now = holder_.load();
  for (;;) {
    if (now == mine) {
      wait_while(holder_, now);
      now = holder_.load();
    } else if (holder_.compare_exchange_weak(now, mine)) {
      // Free, or held by a thread that is not in this process.
      return;
    }
  }
}

void WorkLock::unlock() noexcept {
  holder_.store(0);
  wake_all(holder_);
}

}  // namespace fulmen
