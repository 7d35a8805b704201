// Mutexes that the compiler initialises: the C++ library's are such everywhere but on Windows.
#pragma once

#if defined(_WIN32)

namespace fulmen::platform {

// Windows' SRWLOCK.
class SharedMutex {
 public:
  void lock() noexcept;
  void unlock() noexcept;
  void lock_shared() noexcept;
  void unlock_shared() noexcept;

 private:
  void* lock_ = nullptr;
};
using Mutex = SharedMutex;

}  // namespace fulmen::platform

#else

#include <mutex>
#include <shared_mutex>

namespace fulmen::platform {

using Mutex = std::mutex;
using SharedMutex = std::shared_mutex;

}  // namespace fulmen::platform

#endif
