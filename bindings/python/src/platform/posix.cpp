#include <pthread.h>

#include <cstdlib>
#include <cstring>

#include "platform/system.h"

namespace fulmen::python {
namespace {

std::mutex* held = nullptr;

}  // namespace

bool environment_flag(const char* name) {
  const char* value = ::secure_getenv(name);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

void hold_at_fork(std::mutex& mutex) {
  held = &mutex;
  ::pthread_atfork([] { held->lock(); }, [] { held->unlock(); }, [] { held->unlock(); });
}

void* aligned_memory(std::size_t alignment, std::size_t bytes) noexcept {
  return std::aligned_alloc(alignment, bytes);
}
void free_aligned(void* memory) noexcept { std::free(memory); }

}  // namespace fulmen::python
