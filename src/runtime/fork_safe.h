// Locks of a library whose process may fork at any time. A forked child has the calling thread
// alone: a lock that another thread held is held for ever there, and what it guarded may be half
// written. All locks of the library are of these kinds:
//
//   Mutex, SharedMutex  short sections. fork() waits for the sections that have begun and lets none
//                       begin, so the child finds these locks free and what they guard whole.
//                       Within one, nothing that takes long is done and nobody else's function is
//                       called: a callback, a vendor's library, dlopen, which may wait for the
//                       thread that forks. No WorkLock or MadeOnce is waited for.
//   WorkLock            long work that one thread does at a time: a compilation, a search for a
//                       library, a callback. fork() does not wait; the child finds it free. What
//                       the work made is published afterwards, by a Mutex or an atomic.
//   MadeOnce            an object that is made at its first use. The child makes what was not
//                       finished anew. It stands where a static variable of a function would, whose
//                       own guard a forked child may wait for without end.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/platform/libraries.h"
#include "runtime/platform/mutexes.h"

namespace fulmen {

class Mutex {
 public:
  void lock();
  void unlock();

 private:
  platform::Mutex mutex_;
};

class SharedMutex {
 public:
  void lock();
  void unlock();
  void lock_shared();
  void unlock_shared();

 private:
  platform::SharedMutex mutex_;
};

class WorkLock {
 public:
  void lock() noexcept;
  void unlock() noexcept;

 private:
  // 0, or the number of the process, counted along its line of forks, whose thread holds it.
  std::atomic<int> holder_{0};
};

// Opening, closing and listing libraries. The C library's list of what is loaded may be half
// written, or locked, while they run: a child that reads it then crashes, or waits without end.
// fork() waits for them, too, but for two seconds at most: what a library does when it is loaded
// may itself wait for the thread that forks.
void* open_library(const std::string& name, platform::Opening opening,
                   platform::OpeningError& error);
void close_library(void* library) noexcept;
void visit_libraries(const std::function<bool(const platform::LoadedLibrary&)>& visit);

// A static variable of this type is initialised by the compiler and never destroyed: other threads
// may use it until the process has ended. One that is a member has an owner, who calls destroy().
template <class T>
class MadeOnce {
 public:
  // Made by make() where nobody has been before. What make() throws, the next one who asks may not
  // meet.
  template <class Make>
  T& get(const Make& make) {
    if (T* made = made_.load(std::memory_order_acquire); made != nullptr) return *made;
    const std::scoped_lock lock(making_);
    if (T* made = made_.load(std::memory_order_acquire); made != nullptr) return *made;
    T* const made = new T(make());
    made_.store(made, std::memory_order_release);
    return *made;
  }
  T& get() {
    if (T* made = made_.load(std::memory_order_acquire); made != nullptr) return *made;
    const std::scoped_lock lock(making_);
    if (T* made = made_.load(std::memory_order_acquire); made != nullptr) return *made;
    T* const made = new T();
    made_.store(made, std::memory_order_release);
    return *made;
  }
  // Null where it has not been made.
  T* made() const noexcept { return made_.load(std::memory_order_acquire); }
  void destroy() noexcept { delete made_.exchange(nullptr); }

 private:
  WorkLock making_;
  std::atomic<T*> made_{nullptr};
};

}  // namespace fulmen
