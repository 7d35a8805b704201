// Libraries and programs that are looked for until they are found.
#pragma once

#include <atomic>
#include <mutex>

#include "runtime/fork_safe.h"

namespace fulmen {

// What was found is kept for ever. A refusal is not kept: the next one who asks looks again, as the
// reason may be gone (memory was short, a variable was wrong, a library is installed now). T is a
// Status or a Result.
template <class T>
class FoundOnce {
 public:
  // What was found before, else what find() says now.
  template <class Find>
  T get(const Find& find) {
    if (const T* found = found_.load(std::memory_order_acquire); found != nullptr) return *found;
    const std::scoped_lock lock(finding_);
    if (const T* found = found_.load(std::memory_order_acquire); found != nullptr) return *found;
    T said = find();
    if (said.ok()) found_.store(new T(said), std::memory_order_release);
    return said;
  }

 private:
  WorkLock finding_;
  // Never freed: static objects' destructors may still call the library.
  std::atomic<const T*> found_{nullptr};
};

}  // namespace fulmen
