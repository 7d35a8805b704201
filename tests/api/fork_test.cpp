// A process that forks while other threads of it are in the library: the child has none of them,
// and must be able to do all that its parent can. check_sources.py and install.locks see that every
// lock of the library is one of the kinds that are tested here.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/small_call.h"
#include "fulmen/compile.h"
#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/drivers/isa/driver.h"
#include "runtime/fork_safe.h"
#include "runtime/found_once.h"
#include "runtime/hooks.h"
#include "runtime/run_program.h"
#include "tuning/results.h"

namespace fulmen::testing {
namespace {

using namespace std::chrono_literals;

// The value that `body` returns in a forked child; -SIGALRM if the child hangs.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

void wait_until(const std::atomic<bool>& said) {
  while (!said.load()) std::this_thread::sleep_for(100us);
}

// A thread is in a section and has written half of what the lock guards.
template <class Lock>
void expect_whole_sections() {
  Lock lock;
  std::atomic<bool> inside{false};
  int first = 0, second = 0;
  std::thread other([&] {
    const std::scoped_lock section(lock);
    first = 1;
    inside.store(true);
    std::this_thread::sleep_for(30ms);
    second = 1;
  });
  wait_until(inside);
  EXPECT_EQ(in_child([&] {
              const std::scoped_lock section(lock);
              return first == second ? 0 : 1;
            }),
            0);
  other.join();
  const std::scoped_lock section(lock);
  EXPECT_EQ(second, 1);
}

TEST(Fork, WaitsForSections) {
  expect_whole_sections<Mutex>();
  expect_whole_sections<SharedMutex>();
}

TEST(Fork, WaitsForReaders) {
  SharedMutex lock;
  std::atomic<bool> inside{false};
  std::thread other([&] {
    const std::shared_lock section(lock);
    inside.store(true);
    std::this_thread::sleep_for(30ms);
  });
  wait_until(inside);
  EXPECT_EQ(in_child([&] {
              const std::scoped_lock section(lock);
              return 0;
            }),
            0);
  other.join();
}

// A thread may take another lock in a section that has begun before the fork.
TEST(Fork, LetsSectionsWithinSectionsBegin) {
  Mutex outer, inner;
  std::atomic<bool> inside{false};
  std::thread other([&] {
    const std::scoped_lock section(outer);
    inside.store(true);
    std::this_thread::sleep_for(30ms);
    const std::scoped_lock more(inner);
  });
  wait_until(inside);
  EXPECT_EQ(in_child([&] {
              const std::scoped_lock section(outer);
              const std::scoped_lock more(inner);
              return 0;
            }),
            0);
  other.join();
}

TEST(Fork, MayStandInASectionOfItsOwn) {
  Mutex lock;
  {
    const std::scoped_lock section(lock);
    EXPECT_EQ(in_child([] { return 0; }), 0);
  }
  int value = 1;
  {
    lock.lock();
    const pid_t child = ::fork();
    lock.unlock();
    if (child == 0) {
      ::alarm(20);
      lock.lock();
      value = 0;
      lock.unlock();
      ::_exit(in_child([&] {
        const std::scoped_lock section(lock);
        return value;
      }));
    }
    int state = 0;
    ::waitpid(child, &state, 0);
    EXPECT_EQ(state, 0);
  }
}

// While the parent does it, the child does it, too, without waiting.
TEST(Fork, LongWorkIsDoneAnew) {
  WorkLock lock;
  MadeOnce<const int> made;
  constinit static FoundOnce<Result<int>> found;
  std::atomic<bool> working{false}, stop{false};
  const auto work = [&] {
    working.store(true);
    wait_until(stop);
    return 1;
  };
  const std::vector<std::function<void()>> long_works{
      [&] {
        const std::scoped_lock held(lock);
        work();
      },
      [&] { made.get(work); },
      [&] { EXPECT_TRUE(found.get([&] { return Result<int>(work()); }).ok()); }};
  for (const auto& long_work : long_works) {
    working.store(false);
    stop.store(false);
    std::thread other(long_work);
    wait_until(working);
    EXPECT_EQ(in_child([&] {
                {
                  const std::scoped_lock held(lock);
                }
                {
                  const std::scoped_lock held(lock);
                }
                return made.get([] { return 2; }) > 0 &&
                               found.get([] { return Result<int>(2); }).ok()
                           ? 0
                           : 1;
              }),
              0);
    std::atomic<bool> entered{false};
    std::thread waits([&] {
      long_work();
      entered.store(true);
    });
    std::this_thread::sleep_for(5ms);
    EXPECT_FALSE(entered.load()) << "in the parent it is held";
    stop.store(true);
    other.join();
    waits.join();
  }
  EXPECT_EQ(*made.made(), 1);
  EXPECT_EQ(found.get([] { return Result<int>(3); }).value(), 1);
  made.destroy();
}

// One function for each file that has a lock. They change nothing that the others, or other tests,
// rely on.
struct Use {
  const char* name;
  std::function<bool()> use;
};

class NamedBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "forked"; }
  std::vector<DeviceInfo> devices() const override { return {}; }
  const std::vector<const Kernel*>& kernels() const override { return none_; }

 private:
  std::vector<const Kernel*> none_;
};

std::vector<Use> uses() {
  static std::atomic<bool> registered{false};
  const char* const emulated = "emulated:gfx1100";
  return {
      {"devices", [] { return !devices().empty(); }},
      {"default device", [] { return set_default_device("").ok() && !default_device().empty(); }},
      {"candidates",
       [=] {
         SmallCall call;
         const auto all = candidates(make_problem(call.tensors, call.options).value(), emulated);
         return all.ok() || all.status().code() == StatusCode::unavailable;
       }},
      {"register",
       [] {
         if (registered.exchange(true)) return true;
         const bool right = register_backend(std::make_shared<NamedBackend>()).ok() &&
                            unregister_backend("forked").ok();
         registered.store(false);
         return right;
       }},
      {"memory of a device",
       [=] {
         void* memory = nullptr;
         // A build without the emulator.
         if (fulmen_device_allocate(emulated, 64, &memory) != FULMEN_OK) return true;
         char byte = 1;
         const bool right = fulmen_device_copy(emulated, memory, &byte, 1) == FULMEN_OK;
         fulmen_device_free(emulated, memory);
         return right;
       }},
      {"log", [] { return set_allocator({}).ok() && host_allocator().allocate == nullptr; }},
      {"prebuilt kernels", [] { return add_prebuilt_kernels(::testing::TempDir()).ok(); }},
      {"observer",
       [] {
         set_compile_observer(nullptr, nullptr);
         return true;
       }},
      {"programs", [] { return run_program({"/bin/true"}).ok(); }},
      {"programs that fail", [] { return !run_program({"/bin/false"}).ok(); }},
      {"folders", [] { return TemporaryDirectory().status().ok(); }},
      {"sources",
       [] { return !gpu::kernel_source_identity({"forward/prefill.h"}, "gfx11").empty(); }},
      {"tuned results",
       [] {
         tuning::forget_results();
         tuning::results_of(tuning::known_chip("gfx1100"));
         return true;
       }},
      {"counts", [] { return gpu::isa::take_counts().empty(); }},
      {"plan", [] {
         SmallCall call;
         const auto made = plan(make_problem(call.tensors, call.options).value(), "cpu");
         return made.ok() && !made->explain().empty();
       }}};
}

TEST(Fork, AChildCanDoWhatOthersAreDoing) {
  const std::vector<Use> all = uses();
  for (const Use& use : all) ASSERT_TRUE(use.use()) << use.name;
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (const Use& use : all) {
    others.emplace_back([&] {
      while (!stop.load()) use.use();
    });
  }
  for (int n = 0; n < 20; ++n) {
    std::this_thread::sleep_for(1ms);
    const int failed = in_child([&] {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!all[i].use()) return static_cast<int>(i) + 1;
      }
      return 0;
    });
    EXPECT_EQ(failed, 0) << (failed > 0 ? all[static_cast<std::size_t>(failed - 1)].name
                                        : "it waits without end");
    if (failed != 0) break;
  }
  stop.store(true);
  for (std::thread& other : others) other.join();
}

// The child must not end programs that its parent has started.
TEST(Fork, AChildEndsNoProgramOfItsParent) {
  std::atomic<bool> ended{false};
  bool right = false;
  std::thread other([&] {
    right = run_program({"/bin/sleep", "0.2"}).ok();
    ended.store(true);
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(in_child([] {
              end_programs();
              return 0;
            }),
            0);
  other.join();
  EXPECT_TRUE(right);
}

}  // namespace
}  // namespace fulmen::testing
