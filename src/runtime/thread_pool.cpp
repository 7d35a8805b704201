// A thread of the pool sleeps in its slot. A caller acquires slots, posts its call into them and
// computes itself; then it takes back the calls that no thread has begun, and waits for the others.
//
//   idle -> asleep              the thread, after spinning for a while
//   idle, asleep -> posted      the caller that owns the slot
//   posted -> running -> idle   the thread
//   posted -> idle              the caller, who has finished before the thread began
//   running -> awaited -> idle  the caller, before it sleeps until the thread has ended
//   idle, asleep -> ending      the end of the process, or of the library in it
#include "runtime/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfenv>
#include <chrono>
#include <thread>

#include "runtime/fork_safe.h"
#include "runtime/platform/threads.h"

namespace fulmen::cpu {
namespace {

using platform::wait_while;
using platform::wake_all;
using Clock = std::chrono::steady_clock;

// A thread spins for an eighth of what it has just computed: callers that follow each other closely
// save a wake-up, and others lose at most an eighth more processor time.
constexpr int kWorkPerSpin = 8;
constexpr Clock::duration kMaxSpin = std::chrono::microseconds(100);
// A caller spins for the last tasks at least as long as a sleep and a wake-up take.
constexpr Clock::duration kMinWait = std::chrono::microseconds(5);
constexpr int kPausesPerLook = 16;  // at the clock, which takes as long as one

constexpr int kIdle = 0, kAsleep = 1, kPosted = 2, kRunning = 3, kAwaited = 4, kEnding = 5;

struct Call {
  void (*task)(void* arg, int64_t worker);
  void* arg;
  std::fenv_t environment;
  // Slots whose threads sleep. Those that are awake help to wake the others; num_asleep is 0 until
  // the list is whole.
  std::array<uint16_t, kMaxThreads> asleep;
  std::atomic<int> num_asleep{0};
  std::atomic<int> next_to_wake{0};
};

struct alignas(64) Slot {
  std::atomic<int> state{kIdle};
  int64_t worker = 0;    // of this and the next, the owner's: what the thread is to do
  Call* call = nullptr;  // on the owner's stack
  platform::Thread thread{};
  bool started = false;
};

constexpr int kSlotsPerWord = 64;

// All of it is free of destructors: threads may run on while the process ends.
constinit std::array<Slot, kMaxThreads> slots;
constinit std::array<std::atomic<uint64_t>, kMaxThreads / kSlotsPerWord> owned{};  // a bit a slot
// Callers, and slots that are owned by them.
constinit std::atomic<int> threads_in_use{0};

void pause_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `left` comes true within the time.
template <class Left>
bool spin_until(Clock::duration time, const Left& left) noexcept {
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (left()) return true;
      pause_processor();
    }
  } while (Clock::now() < end);
  return left();
}

// The thread's side.

bool has_something(const Slot& slot) noexcept {
  const int state = slot.state.load(std::memory_order_relaxed);
  return state == kPosted || state == kEnding;
}

void sleep_until_something(Slot& slot) noexcept {
  while (!has_something(slot)) {
    int idle = kIdle;
    if (slot.state.compare_exchange_strong(idle, kAsleep) || idle == kAsleep)
      wait_while(slot.state, kAsleep);
  }
}

void wake_sleepers(Call& call) noexcept {
  const int count = call.num_asleep.load(std::memory_order_acquire);
  while (call.next_to_wake.load(std::memory_order_relaxed) < count) {
    const int next = call.next_to_wake.fetch_add(1, std::memory_order_relaxed);
    if (next < count) wake_all(slots[call.asleep[static_cast<std::size_t>(next)]].state);
  }
}

Clock::duration own_time() noexcept {
  return std::chrono::duration_cast<Clock::duration>(platform::thread_time());
}

// The next call may follow at once. Only then the thread asks for its time, which takes as long as
// 20 looks.
void wait_for_something(Slot& slot, Clock::duration& last_wait) noexcept {
  for (int i = 0; i < 2 * kPausesPerLook; ++i) {
    if (has_something(slot)) return;
    pause_processor();
  }
  const Clock::duration now = own_time();
  const Clock::duration spin = std::min((now - last_wait) / kWorkPerSpin, kMaxSpin);
  if (!spin_until(spin, [&] { return has_something(slot); })) sleep_until_something(slot);
  last_wait = now + spin;
}

void* serve(void* arg) {
  Slot& slot = *static_cast<Slot*>(arg);
  Clock::duration last_wait = own_time();
  for (;;) {
    wait_for_something(slot, last_wait);
    int posted = kPosted;
    if (!slot.state.compare_exchange_strong(posted, kRunning)) {
      if (posted == kEnding) return nullptr;
      continue;  // taken back
    }
    Call& call = *slot.call;
    wake_sleepers(call);
    std::fesetenv(&call.environment);
    call.task(call.arg, slot.worker);
    if (slot.state.exchange(kIdle) == kAwaited) wake_all(slot.state);
  }
}

// Signals are the host's, whose threads they go to; and a thread of the host's that is bound to a
// processor may be the first to call.
bool start_thread(Slot& slot) noexcept {
  slot.started = platform::start_thread(slot.thread, serve, &slot);
  return slot.started;
}

// The caller's side.

// Counts the caller and up to wanted more, but not more than limit in all; returns how many more.
int take_threads(int wanted, int limit) noexcept {
  int used = threads_in_use.load(std::memory_order_relaxed);
  for (;;) {
    const int more = std::clamp(limit - used - 1, 0, wanted);
    if (threads_in_use.compare_exchange_weak(used, used + 1 + more, std::memory_order_relaxed))
      return more;
  }
}

// Slots that a caller owns, the lowest free ones: call after call a worker is the same thread,
// whose caches know its range of tasks.
class OwnedSlots {
 public:
  explicit OwnedSlots(int wanted) noexcept {
    for (std::size_t word = 0; word < owned.size() && count_ < wanted; ++word) {
      uint64_t before = owned[word].load(std::memory_order_relaxed), chosen;
      do {
        uint64_t rest = ~before;
        for (int i = count_; i < wanted && rest != 0; ++i) rest &= rest - 1;
        chosen = ~before ^ rest;
      } while (chosen != 0 && !owned[word].compare_exchange_weak(before, before | chosen,
                                                                 std::memory_order_acquire));
      for (; chosen != 0; chosen &= chosen - 1) {
        index_[static_cast<std::size_t>(count_++)] =
            static_cast<uint16_t>(word * kSlotsPerWord + std::countr_zero(chosen));
      }
    }
  }
  ~OwnedSlots() {
    for (int i = 0; i < count_; ++i) {
      const uint16_t slot = (*this)[i];
      owned[slot / kSlotsPerWord].fetch_and(~(uint64_t{1} << (slot % kSlotsPerWord)),
                                            std::memory_order_release);
    }
  }
  OwnedSlots(const OwnedSlots&) = delete;
  OwnedSlots& operator=(const OwnedSlots&) = delete;

  int count() const noexcept { return count_; }
  uint16_t operator[](int i) const noexcept { return index_[static_cast<std::size_t>(i)]; }

 private:
  int count_ = 0;
  std::array<uint16_t, kMaxThreads> index_;
};

// Where the system gives no more threads, fewer compute.
void post(const OwnedSlots& mine, Call& call) noexcept {
  int num_asleep = 0;
  for (int i = 0; i < mine.count(); ++i) {
    Slot& slot = slots[mine[i]];
    slot.call = &call;
    slot.worker = i + 1;
    const int before = slot.state.exchange(kPosted);
    if (!slot.started && !start_thread(slot)) {
      slot.state.store(kIdle);
      break;
    }
    if (before == kAsleep) call.asleep[static_cast<std::size_t>(num_asleep++)] = mine[i];
  }
  call.num_asleep.store(num_asleep, std::memory_order_release);
}

// Returns when the slot's thread has ended its task, or has not begun it and will not.
void wait_for(Slot& slot, Clock::duration spin) noexcept {
  int posted = kPosted;
  if (slot.state.compare_exchange_strong(posted, kIdle) || posted != kRunning) return;
  if (spin_until(spin, [&] { return slot.state.load(std::memory_order_relaxed) != kRunning; })) {
    static_cast<void>(slot.state.load(std::memory_order_acquire));
    return;
  }
  int running = kRunning;
  if (!slot.state.compare_exchange_strong(running, kAwaited)) return;
  while (slot.state.load() == kAwaited) wait_while(slot.state, kAwaited);
}

// A forked child has none of its parent's threads.
void after_fork_in_child() noexcept {
  for (Slot& slot : slots) {
    slot.state.store(kIdle);
    slot.started = false;
  }
  for (auto& word : owned) word.store(0);
  threads_in_use.store(0);
}

struct PoolForkWatch {
  PoolForkWatch() noexcept { platform::at_fork(nullptr, nullptr, after_fork_in_child); }
} const kForkWatch;

// Ends the threads before the library's code is unmapped by dlclose, and when the process ends. A
// call that never returns, since its own thread ends the process, keeps its threads.
struct ThreadsEnd {
  ~ThreadsEnd() {
    if (!platform::threads_outlive_statics()) return;
    const Clock::time_point latest = Clock::now() + std::chrono::seconds(1);
    for (std::size_t word = 0; word < owned.size(); ++word) {
      uint64_t taken = 0;  // never given back: no call finds a thread any more
      for (;;) {
        const uint64_t more = ~owned[word].exchange(~uint64_t{0}) & ~taken;
        for (uint64_t rest = more; rest != 0; rest &= rest - 1) {
          Slot& slot =
              slots[word * kSlotsPerWord + static_cast<std::size_t>(std::countr_zero(rest))];
          if (slot.started && slot.state.exchange(kEnding) == kAsleep) wake_all(slot.state);
        }
        taken |= more;
        if (taken == ~uint64_t{0} || Clock::now() > latest) break;
        platform::sleep_for(std::chrono::microseconds(100));
      }
      for (; taken != 0; taken &= taken - 1) {
        Slot& slot =
            slots[word * kSlotsPerWord + static_cast<std::size_t>(std::countr_zero(taken))];
        if (slot.started) platform::join_thread(slot.thread);
      }
    }
  }
} const kThreadsEnd;

}  // namespace

void run_on_pool(int workers, int limit, void (*task)(void* arg, int64_t worker),
                 void* arg) noexcept {
  const int more = take_threads(workers - 1, limit);
  if (more == 0) {
    task(arg, 0);
  } else {
    Call call;
    call.task = task;
    call.arg = arg;
    std::fegetenv(&call.environment);
    const OwnedSlots mine(more);
    const Clock::time_point begin = Clock::now();
    post(mine, call);
    wake_sleepers(call);
    task(arg, 0);
    const Clock::duration spin =
        std::clamp<Clock::duration>((Clock::now() - begin) / kWorkPerSpin, kMinWait, kMaxSpin);
    for (int i = 0; i < mine.count(); ++i) wait_for(slots[mine[i]], spin);
  }
  threads_in_use.fetch_sub(1 + more, std::memory_order_relaxed);
}

int usable_processors() noexcept {
  constinit static MadeOnce<const int> count;
  return count.get([] {
    const int usable = platform::usable_processors();
    return usable > 0 ? usable
                      : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  });
}

}  // namespace fulmen::cpu
