// Libraries and programs that are looked for until they are found.
#pragma once

#include <mutex>

namespace fulmen {

// What was found is kept for ever. A refusal is not kept: the next one who asks looks again, as the reason may be gone (memory was
// short, a variable was wrong, a library is installed now). T is a Status or a Result.
template <class T>
class FoundOnce {
 public:
  // What was found before, else what find() says now.
  template <class Find>
  T get(const Find& find) {
    const std::scoped_lock lock(mutex_);
    if (found_ != nullptr) return *found_;
    T said = find();
    if (said.ok()) found_ = new T(said);
    return said;
  }

 private:
  std::mutex mutex_;
  const T* found_ = nullptr;  // never freed: static objects' destructors may still call the library
};

}  // namespace fulmen
