#include "allocation_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}  // namespace

namespace fulmen::testing {
int64_t allocations() { return count; }
}  // namespace fulmen::testing

// ThreadSanitizer links operators of its own: nothing is counted there.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FULMEN_TSAN 1
#endif
#endif
#ifndef FULMEN_TSAN
void* operator new(std::size_t bytes) {
  ++count;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
#endif
