#include <malloc.h>

#include <cstdlib>
#include <cstring>

#include "platform/system.h"

namespace fulmen::python {

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

// There is no fork().
void hold_at_fork(std::mutex& /*mutex*/) {}

void* aligned_memory(std::size_t alignment, std::size_t bytes) noexcept {
  return ::_aligned_malloc(bytes, alignment);
}
void free_aligned(void* memory) noexcept { ::_aligned_free(memory); }

}  // namespace fulmen::python
