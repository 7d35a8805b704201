#include "runtime/platform/threads.h"

#include <process.h>
#include <windows.h>

#include <memory>

namespace fulmen::platform {
namespace {

struct Start {
  void* (*run)(void*);
  void* argument;
};

unsigned __stdcall begin(void* pointer) {
  const std::unique_ptr<Start> start(static_cast<Start*>(pointer));
  start->run(start->argument);
  return 0;
}

// A thread that ends waits for the lock that FreeLibrary holds, so nothing can wait for it there:
// once there are threads, this library stays in memory until the process ends.
void stay_in_memory() noexcept {
  HMODULE self = nullptr;
  ::GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                       reinterpret_cast<const wchar_t*>(&begin), &self);
}

}  // namespace

void wait_while(std::atomic<int>& number, int expected) noexcept {
  ::WaitOnAddress(&number, &expected, sizeof expected, INFINITE);
}

void wake_all(std::atomic<int>& number) noexcept { ::WakeByAddressAll(&number); }

void at_fork(void (* /*before*/)(), void (* /*in_parent*/)(), void (* /*in_child*/)()) noexcept {}

bool start_thread(Thread& thread, void* (*run)(void*), void* argument) noexcept {
  stay_in_memory();
  auto start = std::make_unique<Start>(Start{run, argument});
  thread = ::_beginthreadex(nullptr, 0, begin, start.get(), 0, nullptr);
  if (thread == 0) return false;
  start.release();
  return true;
}

void join_thread(Thread thread) noexcept {
  HANDLE handle = reinterpret_cast<HANDLE>(thread);  // NOLINT(performance-no-int-to-ptr)
  ::WaitForSingleObject(handle, INFINITE);
  ::CloseHandle(handle);
}

bool threads_outlive_statics() noexcept { return false; }

void sleep_for(std::chrono::microseconds time) noexcept {
  ::Sleep(static_cast<DWORD>((time.count() + 999) / 1000));
}

// The system counts in steps of 16 ms.
std::chrono::nanoseconds thread_time() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch();
}

int usable_processors() noexcept {
  DWORD_PTR processors = 0, of_system = 0;
  if (::GetProcessAffinityMask(::GetCurrentProcess(), &processors, &of_system) == 0) return 0;
  return __builtin_popcountll(processors);  // 0 for a process in several groups of 64
}

}  // namespace fulmen::platform
