// What differs between systems.
#pragma once

#include <cstddef>
#include <mutex>

namespace fulmen::python {

// Whether a variable of the environment is set to something other than 0, as far as it may be
// trusted.
bool environment_flag(const char* name);

// fork() waits for a mutex's holder: a child has no other thread that could release it. The mutex
// lives as long as the process.
void hold_at_fork(std::mutex& mutex);

// Null where there is none. bytes is a multiple of the alignment.
void* aligned_memory(std::size_t alignment, std::size_t bytes) noexcept;
void free_aligned(void* memory) noexcept;

}  // namespace fulmen::python
